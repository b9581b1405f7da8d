package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
)

// Event is a row of the table `event`. Body holds the exact text.
type Event struct {
	Cluster     string  `json:"cluster"`
	Position    int64   `json:"position"`
	Stream      string  `json:"stream"`
	Version     int64   `json:"version"`
	Type        string  `json:"type"`
	Schema      int64   `json:"schema"`
	ID          string  `json:"id"`
	Actor       string  `json:"actor"`
	OccurredAt  int64   `json:"occurredAt"`
	RecordedAt  int64   `json:"recordedAt"`
	Subject     string  `json:"subject"`
	Cause       *string `json:"cause"`
	Correlation string  `json:"correlation"`
	Body        string  `json:"body"`
	Hash        string  `json:"hash"`
}

// Observed is an event as somebody saw it while the run went on.
type Observed struct {
	Cluster  string `json:"cluster"`
	Position int64  `json:"position"`
	Hash     string `json:"hash"`
}

// Message is a message of a cluster's stream on the bus.
type Message struct {
	Cluster  string `json:"cluster"`
	Sequence int64  `json:"sequence"`
	Subject  string `json:"subject"`
	Data     []byte `json:"data"`
}

// Tables are the other tables of the log, at the end.
type Tables struct {
	Heads map[string]struct {
		Position int64  `json:"position"`
		Hash     string `json:"hash"`
	} `json:"heads"`
	Streams map[string]map[string]int64 `json:"streams"`
	IDs     map[string]map[string]int64 `json:"ids"`
}

// Call is one line of what a client of the log wrote down: that it called, or what it was answered.
type Call struct {
	Cluster   string           `json:"cluster"`
	Client    string           `json:"client"`
	Number    int64            `json:"number"`
	Phase     string           `json:"phase"` // call, return
	At        int64            `json:"at"`    // nanoseconds of the machine's monotonic clock
	Operation string           `json:"operation"`
	IDs       []string         `json:"ids"`
	Streams   []string         `json:"streams"`
	Expect    map[string]int64 `json:"expect"`
	Positions []int64          `json:"positions"`
	Duplicate bool             `json:"duplicate"`
	Stale     *Stale           `json:"stale"`
	Versions  map[string]int64 `json:"versions"`
	Position  int64            `json:"position"`
	Unknown   bool             `json:"unknown"` // the answer to the client was: outcome unknown
}

// Stale is why an append was refused.
type Stale struct {
	Stream   string `json:"stream"`
	Expected int64  `json:"expected"`
	Actual   int64  `json:"actual"`
}

// Recording is everything that a run left behind. The files of a directory, all of which but `events.jsonl` may be missing:
//
//	run.json            {"cluster": the cluster that the journal is of}
//	events.jsonl        the table `event`, by cluster and position
//	tables.json         `log_head`, `stream`, `event_id`
//	observed.jsonl      events as a reader saw them while the run went on
//	bus.jsonl           messages of the streams
//	appends-*.jsonl     histories of clients of the log
//	apiserver/          journals and snapshots of the API server
type Recording struct {
	Cluster  string
	Events   map[string][]Event
	Tables   *Tables
	Observed map[string][]Observed
	Bus      map[string][]Message
	Appends  map[string][]Call
	Journal  *Journal
}

func (r *Recording) clusters() []string {
	names := map[string]bool{}
	for name := range r.Events {
		names[name] = true
	}
	for name := range r.Appends {
		names[name] = true
	}
	for name := range r.Observed {
		names[name] = true
	}
	sorted := []string{}
	for name := range names {
		sorted = append(sorted, name)
	}
	sort.Strings(sorted)
	return sorted
}

func readRecording(directory string) (*Recording, error) {
	r := &Recording{
		Events: map[string][]Event{}, Observed: map[string][]Observed{}, Bus: map[string][]Message{},
		Appends: map[string][]Call{},
	}
	run := struct {
		Cluster string `json:"cluster"`
	}{}
	if err := readJSON(filepath.Join(directory, "run.json"), &run); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	r.Cluster = run.Cluster
	tables := Tables{}
	switch err := readJSON(filepath.Join(directory, "tables.json"), &tables); {
	case err == nil:
		r.Tables = &tables
	case !errors.Is(err, os.ErrNotExist):
		return nil, err
	}
	if err := readLines(filepath.Join(directory, "events.jsonl"), true, func(e Event) {
		r.Events[e.Cluster] = append(r.Events[e.Cluster], e)
	}); err != nil {
		return nil, err
	}
	if err := readLines(filepath.Join(directory, "observed.jsonl"), false, func(o Observed) {
		r.Observed[o.Cluster] = append(r.Observed[o.Cluster], o)
	}); err != nil {
		return nil, err
	}
	if err := readLines(filepath.Join(directory, "bus.jsonl"), false, func(m Message) {
		r.Bus[m.Cluster] = append(r.Bus[m.Cluster], m)
	}); err != nil {
		return nil, err
	}
	histories, err := filepath.Glob(filepath.Join(directory, "appends-*.jsonl"))
	if err != nil {
		return nil, err
	}
	for _, path := range histories {
		if err := readLines(path, false, func(c Call) {
			r.Appends[c.Cluster] = append(r.Appends[c.Cluster], c)
		}); err != nil {
			return nil, err
		}
	}
	if r.Cluster != "" {
		if r.Journal, err = readJournal(filepath.Join(directory, "apiserver")); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// readLines decodes a file of JSON lines. The last line may be half written, by a client that was killed.
func readLines[T any](path string, required bool, take func(T)) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) && !required {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	scanner.Buffer(make([]byte, 1<<20), 64<<20)
	number, torn := 0, error(nil)
	for scanner.Scan() {
		number++
		if torn != nil {
			return torn
		}
		var item T
		if err := json.Unmarshal(scanner.Bytes(), &item); err != nil {
			torn = fmt.Errorf("%s: line %d: %w", path, number, err)
			continue
		}
		take(item)
	}
	if torn != nil && required {
		return torn
	}
	return scanner.Err()
}
