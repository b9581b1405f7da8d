package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
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

// Bind is a version of a pod in which its node is another than before.
type Bind struct {
	ResourceVersion int64
	Node            string
}

// ApiPod is a pod as the API server had it, from its creation to its end.
type ApiPod struct {
	UID, Namespace, Name, Scheduler, Phase, Node string
	Binds                                        []Bind
	Deleted                                      bool
	Reserves                                     bool   // it holds a GPU for pods that share it
	Group                                        string // which one
}

func (p *ApiPod) String() string { return p.Namespace + "/" + p.Name }

// Journal is what the API server wrote down before it answered.
type Journal struct {
	Pods  map[string]*ApiPod // by uid
	Nodes map[string]bool    // those that there are
	Lines int
	Torn  []string // what cannot be read
}

type object struct {
	Metadata struct {
		UID       string            `json:"uid"`
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		NodeName      string `json:"nodeName"`
		SchedulerName string `json:"schedulerName"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// readJournal reads a directory of the simulated API server: `snapshot-<rv>`, `journal-<rv>`, each line
// `crc32 rv storage key body`, where the body is `-` for a deletion.
func readJournal(directory string) (*Journal, error) {
	journal := &Journal{Pods: map[string]*ApiPod{}, Nodes: map[string]bool{}}
	paths, err := filepath.Glob(filepath.Join(directory, "journal-*"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s: no journal", directory)
	}
	sort.Strings(paths)
	start := filepath.Join(directory, "snapshot-"+filepath.Base(paths[0])[len("journal-"):])
	if _, err := os.Stat(start); err == nil {
		paths = append([]string{start}, paths...)
	}
	keys, last := map[string]string{}, int64(0)
	for index, path := range paths {
		if err := journal.read(path, index == len(paths)-1, keys, &last); err != nil {
			return nil, err
		}
	}
	return journal, nil
}

func (j *Journal) read(path string, newest bool, keys map[string]string, last *int64) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	reader := bufio.NewReaderSize(file, 1<<20)
	snapshot := filepath.Base(path)[0] == 's'
	for number := 1; ; number++ {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			if len(line) > 0 && !newest {
				j.Torn = append(j.Torn, fmt.Sprintf("%s: line %d is torn, and is not the last", path, number))
			}
			return nil
		}
		if err != nil {
			return err
		}
		j.Lines++
		line = bytes.TrimSuffix(line, []byte("\n"))
		fields := bytes.SplitN(line, []byte(" "), 5)
		if len(fields) < 5 || fmt.Sprintf("%08x", crc32.ChecksumIEEE(line[9:])) != string(fields[0]) {
			j.Torn = append(j.Torn, fmt.Sprintf("%s: line %d is damaged", path, number))
			continue
		}
		rv, err := strconv.ParseInt(string(fields[1]), 10, 64)
		if err != nil {
			j.Torn = append(j.Torn, fmt.Sprintf("%s: line %d has no version", path, number))
			continue
		}
		if !snapshot {
			if rv <= *last {
				j.Torn = append(j.Torn, fmt.Sprintf("%s: line %d: version %d after %d", path, number, rv, *last))
			}
			*last = rv
		}
		storage, key := string(fields[2]), string(fields[3])
		switch storage {
		case "pods":
			j.pod(rv, key, fields[4], keys)
		case "nodes":
			j.Nodes[key] = string(fields[4]) != "-"
		}
	}
}

func (j *Journal) pod(rv int64, key string, body []byte, keys map[string]string) {
	if string(body) == "-" {
		if pod := j.Pods[keys[key]]; pod != nil {
			pod.Deleted = true
		}
		return
	}
	var o object
	if err := json.Unmarshal(body, &o); err != nil {
		j.Torn = append(j.Torn, fmt.Sprintf("pod %s at version %d: %s", key, rv, err))
		return
	}
	keys[key] = o.Metadata.UID
	pod := j.Pods[o.Metadata.UID]
	if pod == nil {
		pod = &ApiPod{UID: o.Metadata.UID, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
		j.Pods[pod.UID] = pod
	}
	pod.Group = o.Metadata.Labels[groupLabel]
	pod.Reserves = pod.Group != "" && o.Metadata.Labels["app.kubernetes.io/managed-by"] == "kai-ledger"
	pod.Scheduler, pod.Phase = o.Spec.SchedulerName, o.Status.Phase
	if o.Spec.NodeName != pod.Node {
		pod.Node = o.Spec.NodeName
		pod.Binds = append(pod.Binds, Bind{rv, pod.Node})
	}
}
