package main

import (
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strconv"
)

// notice is how long before a window work without a limit stops starting there, unless the reservation says otherwise.
const notice = int64(3_600_000_000)

// After so many cycles that come at the time of a drain or later, all that is to leave must be leaving.
const drainCycles = 3

// plan is a reservation of nodes from one event to another: from when on cycles must heed it, and until when.
type plan struct {
	*reservedBody
	from, to int64
	cycles   int
	known    int64 // what the first cycle after the drain's time had seen of the log
	rule     *rule // nil where it does not come again
	starts   []int64
	days     int // that were searched for them
	over     bool
}

// nodeLabels are the labels of nodes since an event, in the log's order.
type nodeLabels map[string][]labelsSince

type labelsSince struct {
	position int64
	labels   map[string]string
}

// has tells whether a node is one of a plan's nodes, as far as the log goes up to a position.
func (p *plan) has(node string, labels nodeLabels, position int64) bool {
	if slices.Contains(p.Nodes, node) {
		return true
	}
	var known map[string]string
	for _, one := range labels[node] {
		if one.position <= position {
			known = one.labels
		}
	}
	if p.Labels == nil || known == nil {
		return false
	}
	for name, value := range p.Labels {
		if there, ok := known[name]; !ok || there != value {
			return false
		}
	}
	return true
}

// cycleBody is what a cycle knew.
type cycleBody struct{ input, now int64 }

// cyclesOf is the cycles of a log by id.
func cyclesOf(report *Report, events []Event) map[string]cycleBody {
	cycles := map[string]cycleBody{}
	for index := range events {
		if e := &events[index]; e.Type == "CycleCompleted" {
			b := decode(report, e)
			cycles[b.Cycle] = cycleBody{b.Input, b.Now}
		}
	}
	return cycles
}

// limitOf is how long a pod says that it runs at most, in microseconds; -1 where it says nothing.
func limitOf(pod *podBody) int64 {
	limit := int64(math.MaxInt64)
	if pod.Deadline > 0 {
		limit = pod.Deadline
	}
	if seconds, err := strconv.ParseInt(pod.Labels["kueue.x-k8s.io/max-exec-time-seconds"], 10, 64); err == nil && seconds > 0 {
		limit = min(limit, seconds)
	}
	if limit == math.MaxInt64 {
		return -1
	}
	return limit * 1_000_000
}

// isOf tells whether a pod can be of a work: it, its owner, or what a label or an annotation names, has the work's name.
func (p *podBody) isOf(work string) bool {
	if work == "" || p.Name == work || p.Owner.Name == work {
		return true
	}
	for _, names := range []map[string]string{p.Labels, p.Notes} {
		for _, name := range names {
			if name == work {
				return true
			}
		}
	}
	return false
}

// whom tells whether a reservation is for a pod.
func (p *plan) whom(pod *podBody, parents map[string]string) bool {
	if p.Queue == "" && p.Namespace == "" || p.Namespace != "" && p.Namespace != pod.Namespace || !pod.isOf(p.Work) {
		return false
	}
	for name := pod.Labels["kai.scheduler/queue"]; p.Queue != "" && name != p.Queue; name = parents[name] {
		if name == "" {
			return false
		}
	}
	return true
}

// mayStart tells whether a pod may start on a reserved node: outside of all windows, and to end before the next one.
func (p *plan) mayStart(pod *podBody, now int64) bool {
	runs := limitOf(pod)
	if runs < 0 {
		if runs = notice; p.Notice != nil {
			runs = *p.Notice
		}
	}
	next, there := p.windowAt(now)
	return !there || now+runs <= next.start
}

// whereabouts is what the log says of a pod on its way off a node.
type whereabouts struct {
	pod    *podBody
	since  int64 // the event that showed it on its node first
	leaves bool  // a cycle has decided that it goes
}

// checkPlans: nothing starts on reserved nodes that the reservation is not for and that does not end before its window;
// so what runs there in the window was there when the reservation was made. And once the time of a drain is over, all
// that was on the nodes is leaving. A node is chosen by the labels that the cycle knew.
func checkPlans(report *Report, cluster string, events []Event) {
	cycles, parents := cyclesOf(report, events), map[string]string{}
	plans, open, pods, labels := []*plan{}, map[string]*plan{}, map[string]*whereabouts{}, nodeLabels{}
	for index := range events {
		e := &events[index]
		switch e.Type {
		case "QueueObserved":
			queue := decode(report, e).Queue
			parents[queue.Name] = queue.Parent
		case "NodeObserved":
			var node nodeBody
			if json.Unmarshal(decode(report, e).Node, &node) == nil {
				// One without labels is there all the same: a reservation of no labels is of all nodes.
				known := map[string]string{}
				maps.Copy(known, node.Labels)
				labels[node.Name] = append(labels[node.Name], labelsSince{e.Position, known})
			}
		case "ReservationObserved", "ReservationDeleted":
			b := decode(report, e)
			name := b.Name
			if b.Reserved != nil {
				name = b.Reserved.Name
			}
			if before := open[name]; before != nil {
				before.to = e.Position
				delete(open, name)
			}
			if one := b.Reserved; one != nil {
				made := &plan{reservedBody: one, from: e.Position, to: math.MaxInt64}
				if one.Recurrence != "" {
					var known bool
					if made.rule, known = ruleOf(one.Recurrence); !known {
						report.wrong("recurrence", "cluster %s: position %d: no rule: %s", cluster, e.Position, one.Recurrence)
						continue
					}
				}
				open[name] = made
				plans = append(plans, made)
			}
		case "PodObserved":
			pod := decode(report, e).Pod
			before := pods[pod.UID]
			if before == nil || before.pod.Node == "" {
				before = &whereabouts{since: e.Position}
				pods[pod.UID] = before
			}
			before.pod = pod
		case "PodDeleted", "PodRejected":
			delete(pods, decode(report, e).UID)
		case "EvictionDecided":
			if one := pods[decode(report, e).UID]; one != nil {
				one.leaves = true
			}
		case "PodPlaced":
			b := decode(report, e)
			cycle, there := cycles[b.Cycle]
			one := pods[b.UID]
			if !there || one == nil {
				continue
			}
			for _, p := range plans {
				if cycle.input < p.from || cycle.input >= p.to || !p.has(b.nodeName(), labels, cycle.input) {
					continue
				}
				report.count("placed-on-reserved", 1)
				if !p.whom(one.pod, parents) && !p.mayStart(one.pod, cycle.now) {
					report.wrong("reserved", "cluster %s: position %d places pod %s on node %s, which reservation %s of position %d "+
						"keeps for other work", cluster, e.Position, e.Subject, b.nodeName(), p.Name, p.from)
				}
			}
		case "CycleCompleted":
			b := decode(report, e)
			for _, p := range plans {
				if p.DrainBy == 0 || b.Input < p.from || b.Input >= p.to || b.Now < p.DrainBy || b.Now >= p.End {
					continue
				}
				if p.cycles++; p.cycles == 1 {
					p.known = b.Input
				} else if p.cycles == drainCycles {
					p.checkLeaving(report, cluster, e, pods, parents, labels)
				}
			}
		}
	}
	report.count("plans", len(plans))
}

// checkLeaving: all that a drain is about, and that its cycles knew of, is leaving.
func (p *plan) checkLeaving(
	report *Report, cluster string, e *Event, pods map[string]*whereabouts, parents map[string]string, labels nodeLabels,
) {
	report.count("drains", 1)
	for _, one := range pods {
		pod := one.pod
		if pod.Scheduler != "kai-ledger" || pod.finished() || pod.Deletion != nil || p.whom(pod, parents) {
			continue
		}
		if one.since > p.known || one.leaves {
			continue
		}
		if p.has(pod.Node, labels, p.known) && p.has(pod.Node, labels, e.Position) {
			report.wrong("undrained", "cluster %s: position %d is the third cycle after the time of drain %s, and pod %s/%s is still "+
				"on node %s", cluster, e.Position, p.Name, pod.Namespace, pod.Name, pod.Node)
		}
	}
}
