package main

import (
	"slices"
	"strings"
)

const (
	// After so many pods that a node failed in a row it gets no more.
	mostLost = 3
	// A pod that ran for so long has not been failed by its node.
	quick = int64(60_000_000)
	// Failures that are older do not count.
	recent = int64(3_600_000_000)
)

// trial is a pod on a node, as far as it says something about the node.
type trial struct {
	key     string // the node, and whether it is work with devices
	placed  int64
	input   int64
	started int64
	leaves  bool
	over    bool
}

// streak is the failures of a node in a row.
type streak struct {
	failures []int64 // positions
	last     int64   // when the last was recorded
	since    int64   // position of the third; 0 while there are fewer
	partial  bool    // it is kept from some works only, which ran nowhere else
}

// checkBlackHoles: a node that fails what is put on it gets no more of that kind of work than three, but what was decided
// before the log showed the third failure. It is judged while no other node fails such work, which could be the work's.
func checkBlackHoles(report *Report, cluster string, events []Event) {
	cycles, pods := cyclesOf(report, events), map[string]*podBody{}
	trials, streaks := map[string]*trial{}, map[string]*streak{}
	alone := func(key string, at int64) bool {
		for other, one := range streaks {
			if other != key && strings.HasSuffix(other, key[strings.LastIndex(key, "/"):]) && at-one.last < recent {
				return false
			}
		}
		return true
	}
	for index := range events {
		e := &events[index]
		switch e.Type {
		case "PodPlaced":
			b := decode(report, e)
			kind := "/plain"
			if pod := pods[b.UID]; len(b.Gpus) > 0 || pod != nil && pod.withDevices() {
				kind = "/devices"
			}
			one := &trial{key: b.nodeName() + kind, placed: e.Position, input: cycles[b.Cycle].input}
			trials[b.UID] = one
		case "EvictionDecided", "BindFailed", "PodRejected", "PodDeleted":
			if one := trials[decode(report, e).UID]; one != nil {
				one.leaves = true
			}
		case "NodeSuspected":
			b := decode(report, e)
			for _, kind := range []string{"/plain", "/devices"} {
				if found := streaks[b.nodeName()+kind]; found != nil {
					found.partial = len(b.Works) > 0
				}
			}
		case "NodeCleared", "NodeDeleted":
			b := decode(report, e)
			for _, kind := range []string{"/plain", "/devices"} {
				delete(streaks, b.nodeName()+kind)
				delete(streaks, b.Name+kind)
			}
		case "PodObserved":
			pod := decode(report, e).Pod
			pods[pod.UID] = pod
			one := trials[pod.UID]
			if one == nil || one.over || one.leaves || pod.Deletion != nil {
				continue
			}
			if pod.Phase == "Running" && one.started == 0 {
				one.started = e.RecordedAt
			}
			if !pod.finished() {
				continue
			}
			one.over = true
			report.checkTrial(cluster, e, one, pod, streaks, alone)
		}
	}
}

func (r *Report) checkTrial(
	cluster string, e *Event, one *trial, pod *podBody, streaks map[string]*streak, alone func(string, int64) bool,
) {
	found := streaks[one.key]
	if pod.Phase == "Succeeded" || one.started > 0 && e.RecordedAt-one.started >= quick {
		if found != nil {
			// Only what failed after the pod came is in a row.
			found.failures = slices.DeleteFunc(found.failures, func(at int64) bool { return at < one.placed })
			if len(found.failures) < mostLost {
				found.since, found.partial = 0, false
			}
		}
		return
	}
	if found == nil {
		found = &streak{}
		streaks[one.key] = found
	}
	if found.since > 0 && !found.partial && one.input >= found.since && alone(one.key, e.RecordedAt) {
		r.wrong("black-hole", "cluster %s: position %d: node %s fails pod %s, which was put there after the log showed %d failures",
			cluster, e.Position, one.key, e.Subject, mostLost)
	}
	found.failures, found.last = append(found.failures, e.Position), e.RecordedAt
	if len(found.failures) == mostLost && found.since == 0 {
		found.since = e.Position
		r.count("black-holes", 1)
	}
}

// withDevices tells whether a pod asks for devices.
func (p *podBody) withDevices() bool {
	for name, amount := range p.requests() {
		if strings.Contains(name, "/") && amount > 0 {
			return true
		}
	}
	return false
}
