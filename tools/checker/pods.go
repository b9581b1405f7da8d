package main

import (
	"encoding/json"
	"fmt"
	"math"

	"github.com/anishathalye/porcupine"
)

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

// bindInput is a binding to a node, or a look at which node a pod has.
type bindInput struct {
	bind bool
	node string
}

// checkBinds: a pod's node is a register that is written once. A binding was called when it was decided and answered
// when it was recorded; both are positions of the log. One without an answer may have been carried out. Each
// observation is a read that happened at some time before it was recorded, and the API server's object is the last.
func checkBinds(report *Report, events []Event, journal *Journal) {
	histories, pending := map[string][]porcupine.Operation{}, map[string][]porcupine.Operation{}
	add := func(uid string, bind bool, node string, call, back int64) {
		histories[uid] = append(histories[uid], porcupine.Operation{Input: bindInput{bind, node}, Call: call, Return: back})
	}
	answer := func(e *Event, carriedOut bool) {
		b := decode(report, e)
		open := pending[b.UID]
		for index := len(open) - 1; index >= 0; index-- {
			if open[index].Input.(bindInput).node == b.nodeName() {
				if carriedOut {
					add(b.UID, true, b.nodeName(), open[index].Call, e.Position)
					pending[b.UID] = append(open[:index:index], open[index+1:]...)
				}
				return
			}
		}
		if carriedOut {
			report.wrong("bound-undecided", "position %d: pod %s is bound to node %s, and no decision is open that says so",
				e.Position, e.Subject, b.nodeName())
		}
	}
	for index := range events {
		e := &events[index]
		switch e.Type {
		case "PodPlaced":
			b := decode(report, e)
			input := bindInput{true, b.nodeName()}
			pending[b.UID] = append(pending[b.UID], porcupine.Operation{Input: input, Call: e.Position, Return: math.MaxInt64})
		case "PodBound":
			answer(e, true)
		case "PodObserved":
			pod := decode(report, e).Pod
			if pod.Scheduler == "kai-ledger" {
				add(pod.UID, false, pod.Node, 0, e.Position)
			}
		}
	}
	checked := 0
	for uid, history := range histories {
		pod := journal.Pods[uid]
		if pod == nil {
			continue
		}
		// What was given back was carried out only where nothing else that is known to have been was.
		for _, operation := range pending[uid] {
			if operation.Input.(bindInput).node == pod.Node && !answered(history) {
				history = append(history, operation)
				break
			}
		}
		history = append(history, porcupine.Operation{
			Input: bindInput{false, pod.Node}, Call: math.MaxInt64, Return: math.MaxInt64,
		})
		checked++
		if !porcupine.CheckOperations(bindModel, history) {
			report.wrong("binds", "pod %s: no order of its bindings and of what was seen of it writes its node once: %s", pod,
				tellBinds(history))
		}
	}
	report.count("bind-histories", checked)
}

// answered tells whether a binding in a history was answered: then it wrote the pod's node.
func answered(history []porcupine.Operation) bool {
	for _, operation := range history {
		if operation.Input.(bindInput).bind {
			return true
		}
	}
	return false
}

// bindModel is a register that is written once; the empty string is no node.
var bindModel = porcupine.Model{
	Init: func() any { return "" },
	Step: func(state, input, _ any) (bool, any) {
		operation := input.(bindInput)
		if !operation.bind {
			return operation.node == state.(string), state
		}
		return state.(string) == "", operation.node
	},
}

func tellBinds(history []porcupine.Operation) string {
	text := ""
	for _, operation := range history {
		input := operation.Input.(bindInput)
		what := fmt.Sprintf("seen on %q", input.node)
		if input.bind {
			what = "bound to " + input.node
		}
		if text += fmt.Sprintf("%s [%d, %d]; ", what, operation.Call, operation.Return); len(text) > 600 {
			return text + "…"
		}
	}
	return text
}
