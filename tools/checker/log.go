package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"strings"
)

// checkLog: positions without gaps from 1, versions of each stream without gaps from 1, ids that are there once, clocks
// that do not go back, and one chain of hashes.
func checkLog(report *Report, cluster string, events []Event) {
	versions, ids := map[string]int64{}, map[string]int64{}
	previous, recordedAt := make([]byte, 32), int64(0)
	for index, e := range events {
		if want := int64(index) + 1; e.Position != want {
			report.wrong("gap", "cluster %s: position %d follows position %d", cluster, e.Position, want-1)
			return
		}
		versions[e.Stream]++
		if e.Version != versions[e.Stream] {
			report.wrong("stream-gap", "cluster %s: position %d: stream %s has version %d after %d", cluster, e.Position,
				e.Stream, e.Version, versions[e.Stream]-1)
			versions[e.Stream] = e.Version
		}
		if first, there := ids[e.ID]; there {
			report.wrong("event-twice", "cluster %s: event %s is at positions %d and %d", cluster, e.ID, first, e.Position)
		}
		ids[e.ID] = e.Position
		if e.RecordedAt < recordedAt {
			report.wrong("clock", "cluster %s: position %d was recorded before position %d", cluster, e.Position, e.Position-1)
		}
		recordedAt = e.RecordedAt
		if hash := hashOf(previous, &e); hash != e.Hash && !strings.HasPrefix(e.Body, `{"$erased":`) {
			report.wrong("chain", "cluster %s: position %d does not have the hash of its contents", cluster, e.Position)
		}
		previous, _ = hex.DecodeString(e.Hash)
	}
	report.count("events", len(events))
}

func hashOf(previous []byte, e *Event) string {
	identifier, _ := hex.DecodeString(strings.ReplaceAll(e.ID, "-", ""))
	cause := []byte{}
	if e.Cause != nil {
		cause, _ = hex.DecodeString(strings.ReplaceAll(*e.Cause, "-", ""))
	}
	fields := [][]byte{
		[]byte(e.Cluster), []byte(e.Stream), []byte(e.Type), identifier, []byte(e.Subject), []byte(e.Actor), cause,
		[]byte(e.Correlation), []byte(e.Body),
	}
	var input bytes.Buffer
	input.Write(previous)
	for _, number := range []int64{e.Position, e.Version, e.Schema, e.OccurredAt, e.RecordedAt} {
		binary.Write(&input, binary.BigEndian, number)
	}
	for _, field := range fields {
		binary.Write(&input, binary.BigEndian, int64(len(field)))
	}
	for _, field := range fields {
		input.Write(field)
	}
	sum := sha256.Sum256(input.Bytes())
	return hex.EncodeToString(sum[:])
}

// checkTables: the tables that an append reads say what the events say.
func checkTables(report *Report, recording *Recording, cluster string, events []Event) {
	tables := recording.Tables
	if tables == nil {
		return
	}
	head, last := tables.Heads[cluster], Event{}
	versions, ids := map[string]int64{}, map[string]int64{}
	for _, e := range events {
		last = e
		versions[e.Stream] = e.Version
		ids[e.ID] = e.Position
	}
	if head.Position != last.Position || (last.Position > 0 && head.Hash != last.Hash) {
		report.wrong("head", "cluster %s: the head is position %d, the last event is position %d", cluster, head.Position,
			last.Position)
	}
	compare(report, "streams", "cluster "+cluster+": stream", tables.Streams[cluster], versions)
	compare(report, "ids", "cluster "+cluster+": event", tables.IDs[cluster], ids)
}

func compare(report *Report, check, what string, noted, real map[string]int64) {
	for name, number := range real {
		if noted[name] != number {
			report.wrong(check, "%s %s: the table has %d, the events have %d", what, name, noted[name], number)
		}
	}
	for name, number := range noted {
		if _, there := real[name]; !there {
			report.wrong(check, "%s %s: the table has %d, and no event has it", what, name, number)
		}
	}
	report.count(check, len(real))
}

// checkObserved: what was once read of the log is in it, as it was read.
func checkObserved(report *Report, cluster string, events []Event, observed []Observed) {
	for _, o := range observed {
		switch {
		case o.Position > int64(len(events)) || o.Position < 1:
			report.wrong("lost", "cluster %s: position %d was read and is gone", cluster, o.Position)
		case events[o.Position-1].Hash != o.Hash:
			report.wrong("changed", "cluster %s: position %d is another event than was read before", cluster, o.Position)
		}
	}
	report.count("reads", len(observed))
}

// checkBus: each message of the stream is the log's event of that position, none is missing, and the last is the last.
func checkBus(report *Report, cluster string, events []Event, messages []Message) {
	for index, m := range messages {
		if index > 0 && m.Sequence != messages[index-1].Sequence+1 {
			report.wrong("bus-gap", "cluster %s: message %d follows message %d", cluster, m.Sequence, messages[index-1].Sequence)
		}
		if m.Sequence < 1 || m.Sequence > int64(len(events)) {
			report.wrong("bus", "cluster %s: message %d is of no position of the log", cluster, m.Sequence)
			continue
		}
		e := events[m.Sequence-1]
		if hash := messageHash(m.Data); hash != e.Hash {
			report.wrong("bus", "cluster %s: message %d is not the event of that position", cluster, m.Sequence)
		}
		if want := "kai." + cluster + "." + e.Type; m.Subject != want {
			report.wrong("bus", "cluster %s: message %d has the subject %s, not %s", cluster, m.Sequence, m.Subject, want)
		}
	}
	if count := len(messages); count > 0 && messages[count-1].Sequence != int64(len(events)) {
		report.wrong("bus-behind", "cluster %s: the last message is %d, the last event is %d", cluster,
			messages[count-1].Sequence, len(events))
	}
	report.count("messages", len(messages))
}

// messageHash returns the hash of the event that a message carries, or stands for.
func messageHash(data []byte) string {
	if bytes.HasPrefix(data, []byte("#")) {
		return hex.EncodeToString(data[1:])
	}
	carried := struct {
		Hash string `json:"hash"`
	}{}
	if json.Unmarshal(data, &carried) != nil {
		return ""
	}
	hash, err := base64.StdEncoding.DecodeString(carried.Hash)
	if err != nil {
		return ""
	}
	return hex.EncodeToString(hash)
}
