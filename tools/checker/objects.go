package main

import "encoding/json"

// checkObjects: the API server's objects and the log say the same, and both ways nothing is missing.
func checkObjects(report *Report, events []Event, journal *Journal) {
	for _, torn := range journal.Torn {
		report.wrong("journal", "%s", torn)
	}
	seen, gone, decided, bound := map[string]*podBody{}, map[string]bool{}, map[string]map[string]bool{}, map[string]int{}
	givenBack, nodes := map[string]string{}, map[string]bool{}
	for index := range events {
		e := &events[index]
		switch e.Type {
		case "PodObserved":
			pod := decode(report, e).Pod
			seen[pod.UID] = pod
		case "PodDeleted":
			gone[decode(report, e).UID] = true
		case "PodPlaced":
			b := decode(report, e)
			if decided[b.UID] == nil {
				decided[b.UID] = map[string]bool{}
			}
			decided[b.UID][b.nodeName()] = true
		case "BindFailed":
			b := decode(report, e)
			givenBack[b.UID] = b.nodeName()
		case "PodBound":
			b := decode(report, e)
			if bound[b.UID]++; bound[b.UID] == 2 {
				report.wrong("bound-twice", "position %d: pod %s is recorded as bound twice", e.Position, e.Subject)
			}
			if pod := journal.Pods[b.UID]; pod == nil {
				report.wrong("bound-nowhere", "position %d: pod %s is bound, and the API server never had it", e.Position, e.Subject)
			} else if pod.Node != b.nodeName() {
				report.wrong("bound-elsewhere", "position %d: pod %s is bound to node %s, at the API server to node %q", e.Position,
					e.Subject, b.nodeName(), pod.Node)
			}
		case "NodeObserved":
			var node nodeBody
			if json.Unmarshal(decode(report, e).Node, &node) == nil {
				nodes[node.Name] = true
			}
		case "NodeDeleted":
			nodes[decode(report, e).Name] = false
		}
	}
	checkPods(report, journal, seen, gone, decided, bound, givenBack)
	for name, there := range journal.Nodes {
		if nodes[name] != there {
			report.wrong("nodes", "node %s: at the API server: %t, in the log: %t", name, there, nodes[name])
		}
	}
	report.count("journal-lines", journal.Lines)
}

func checkPods(
	report *Report, journal *Journal, seen map[string]*podBody, gone map[string]bool, decided map[string]map[string]bool,
	bound map[string]int, givenBack map[string]string,
) {
	for uid, pod := range journal.Pods {
		report.count("pods", 1)
		if len(pod.Binds) > 1 {
			report.wrong("double-bind", "pod %s was bound to node %s and then to node %s", pod, pod.Binds[0].Node, pod.Binds[1].Node)
		}
		ours := pod.Scheduler == "kai-ledger"
		if ours && pod.Node != "" {
			report.count("bound", 1)
			if !decided[uid][pod.Node] {
				report.wrong("bound-undecided", "pod %s is on node %s, and no decision put it there", pod, pod.Node)
			} else if bound[uid] == 0 && givenBack[uid] == pod.Node && (pod.Deleted || seen[uid] != nil && seen[uid].Node == pod.Node) {
				// A request was still under way, or a second binder's, when the decision was given back; a fact tells of it.
				report.count("late-binds", 1)
			} else if bound[uid] == 0 && !pod.Deleted {
				report.wrong("bound-untold", "pod %s is on node %s, and the log does not say that it was bound", pod, pod.Node)
			}
		}
		switch there := seen[uid]; {
		case pod.Deleted && there != nil && !gone[uid]:
			report.wrong("deleted-untold", "pod %s is deleted at the API server, and not in the log", pod)
		case !pod.Deleted && gone[uid]:
			report.wrong("not-deleted", "pod %s is deleted in the log, and not at the API server", pod)
		case !pod.Deleted && there == nil && ours:
			report.wrong("unseen", "pod %s is at the API server, and not in the log", pod)
		case !pod.Deleted && ours && (there.Node != pod.Node || phaseOf(there.Phase) != phaseOf(pod.Phase)):
			report.wrong("objects", "pod %s: at the API server %s on node %q, in the log %s on node %q", pod, pod.Phase, pod.Node,
				there.Phase, there.Node)
		}
	}
}

// phaseOf leaves out what the log leaves out: a pod that is in no phase yet is Pending.
func phaseOf(phase string) string {
	if phase == "" {
		return "Pending"
	}
	return phase
}
