package main

import (
	"fmt"
	"math"

	"github.com/anishathalye/porcupine"
)

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
		for _, operation := range pending[uid] {
			if operation.Input.(bindInput).node == pod.Node {
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
