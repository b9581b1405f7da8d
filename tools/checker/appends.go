package main

import (
	"fmt"
	"maps"
	"math"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

// patience is how long the search for an order may take, for each cluster.
const patience = 2 * time.Minute

// appendInput and appendOutput are what Porcupine's model of a log gets.
type appendInput struct {
	operation string
	ids       []string
	streams   []string
	expect    map[string]int64
}

type appendOutput struct {
	positions []int64
	duplicate bool // the events may have been there before
	stale     *Stale
	versions  map[string]int64
	position  int64
}

// logState is the model's log: how long it is, and how often each stream was appended to. Which event is at which
// position is not part of it: acknowledgements and the table say so once for the whole run, and may not disagree.
type logState struct {
	head     int64
	versions map[string]int64
}

func (s logState) String() string { return fmt.Sprintf("head %d, streams %v", s.head, s.versions) }

// checkAppends: there is an order of all appends and reads of a cluster, in agreement with when they were called and
// answered, in which each gets the answer that it got: positions one after the other, appends that name a version only
// where it holds, and each event once however often it is appended.
func checkAppends(report *Report, cluster string, events []Event, calls []Call) {
	if len(calls) == 0 {
		return
	}
	assigned := map[string]int64{}
	for _, e := range events {
		assigned[e.ID] = e.Position
	}
	history := historyOf(report, cluster, calls, assigned)
	model := modelOf(assigned)
	result := porcupine.CheckOperationsTimeout(model, history, patience)
	switch result {
	case porcupine.Illegal:
		_, info := porcupine.CheckOperationsVerbose(model, history, patience)
		report.wrong("appends", "cluster %s: no order of the %d appends and reads explains their answers; %s", cluster,
			len(history), firstStuck(info, history, model))
	case porcupine.Unknown:
		report.wrong("appends", "cluster %s: no order of %d appends and reads was found in %s", cluster, len(history), patience)
	}
	report.count("appends", len(history))
}

// historyOf puts calls and answers together. What became of a call without an answer is read in the table: it is there
// as a whole, and may have been appended at any time from the call on, or not at all.
func historyOf(report *Report, cluster string, calls []Call, assigned map[string]int64) []porcupine.Operation {
	type key struct {
		client string
		number int64
	}
	clients := map[string]int{}
	called, answered := map[key]Call{}, map[key]Call{}
	order := []key{}
	for _, c := range calls {
		k := key{c.Client, c.Number}
		if c.Phase == "call" {
			called[k] = c
			order = append(order, k)
		} else {
			answered[k] = c
		}
	}
	history := []porcupine.Operation{}
	for _, k := range order {
		c := called[k]
		if _, there := clients[c.Client]; !there {
			clients[c.Client] = len(clients)
		}
		input := appendInput{c.Operation, c.IDs, c.Streams, c.Expect}
		answer, there := answered[k]
		operation := porcupine.Operation{ClientId: clients[c.Client], Input: input, Call: c.At, Return: answer.At}
		if !there || answer.Unknown {
			positions, present := positionsOf(c.IDs, assigned)
			if present > 0 && present < len(c.IDs) {
				report.wrong("half", "cluster %s: of one append of client %s, %d of %d events are in the log", cluster,
					c.Client, present, len(c.IDs))
			}
			report.count("unanswered", 1)
			if c.Operation != "append" || present < len(c.IDs) {
				continue
			}
			operation.Output = appendOutput{positions: positions, duplicate: true}
			operation.Return = math.MaxInt64
			history = append(history, operation)
			continue
		}
		for index, id := range c.IDs {
			if index >= len(answer.Positions) {
				break
			}
			if at, there := assigned[id]; !there {
				report.wrong("lost", "cluster %s: event %s was acknowledged at position %d and is not in the log", cluster, id,
					answer.Positions[index])
			} else if at != answer.Positions[index] {
				report.wrong("moved", "cluster %s: event %s was acknowledged at position %d and is at position %d", cluster, id,
					answer.Positions[index], at)
			}
		}
		operation.Output = appendOutput{answer.Positions, answer.Duplicate, answer.Stale, answer.Versions, answer.Position}
		history = append(history, operation)
	}
	return history
}

func positionsOf(ids []string, assigned map[string]int64) ([]int64, int) {
	positions, present := []int64{}, 0
	for _, id := range ids {
		if at, there := assigned[id]; there {
			present++
			positions = append(positions, at)
		}
	}
	return positions, present
}

func modelOf(assigned map[string]int64) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return logState{0, map[string]int64{}} },
		Step: func(state, input, output any) (bool, any) {
			return step(state.(logState), input.(appendInput), output.(appendOutput), assigned)
		},
		Equal: func(one, other any) bool {
			a, b := one.(logState), other.(logState)
			return a.head == b.head && maps.Equal(a.versions, b.versions)
		},
		Hash:              func(state any) uint64 { return uint64(state.(logState).head) },
		DescribeOperation: func(input, output any) string { return describe(input.(appendInput), output.(appendOutput)) },
		DescribeState:     func(state any) string { return state.(logState).String() },
	}
}

func step(state logState, input appendInput, output appendOutput, assigned map[string]int64) (bool, logState) {
	switch input.operation {
	case "head":
		return output.position == state.head, state
	case "versions":
		for stream, version := range output.versions {
			if state.versions[stream] != version {
				return false, state
			}
		}
		return true, state
	}
	if output.stale != nil {
		s := output.stale
		return input.expect[s.Stream] == s.Expected && s.Expected != s.Actual && state.versions[s.Stream] == s.Actual, state
	}
	there := len(input.ids) > 0
	for _, id := range input.ids {
		at, assignedAtAll := assigned[id]
		there = there && assignedAtAll && at <= state.head
	}
	if there {
		return output.duplicate, state
	}
	for stream, version := range input.expect {
		if state.versions[stream] != version {
			return false, state
		}
	}
	next := logState{state.head, maps.Clone(state.versions)}
	for index, stream := range input.streams {
		next.head++
		next.versions[stream]++
		if index >= len(output.positions) || output.positions[index] != next.head {
			return false, state
		}
	}
	return true, next
}

func describe(input appendInput, output appendOutput) string {
	switch {
	case input.operation == "head":
		return fmt.Sprintf("head -> %d", output.position)
	case input.operation == "versions":
		return fmt.Sprintf("versions -> %v", output.versions)
	case output.stale != nil:
		return fmt.Sprintf("append expecting %v -> stale: %s is at %d", input.expect, output.stale.Stream, output.stale.Actual)
	}
	return fmt.Sprintf("append to %v expecting %v -> positions %v (duplicate: %t)", input.streams, input.expect,
		output.positions, output.duplicate)
}

// firstStuck names the operation that no order got past.
func firstStuck(info porcupine.LinearizationInfo, history []porcupine.Operation, model porcupine.Model) string {
	longest := []int{}
	for _, partial := range info.PartialLinearizations()[0] {
		if len(partial) > len(longest) {
			longest = partial
		}
	}
	state, done := model.Init(), map[int]bool{}
	for _, index := range longest {
		_, state = model.Step(state, history[index].Input, history[index].Output)
		done[index] = true
	}
	rest := []int{}
	for index := range history {
		if !done[index] {
			rest = append(rest, index)
		}
	}
	sort.Slice(rest, func(a, b int) bool { return history[rest[a]].Return < history[rest[b]].Return })
	if len(rest) == 0 {
		return "none is stuck"
	}
	stuck := history[rest[0]]
	return fmt.Sprintf("after %d of them (%s), there is no place for: %s", len(longest), model.DescribeState(state),
		model.DescribeOperation(stuck.Input, stuck.Output))
}
