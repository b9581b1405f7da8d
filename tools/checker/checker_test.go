package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// history makes recordings, event by event.
type history struct {
	events   []Event
	versions map[string]int64
	calls    []Call
}

func newHistory() *history { return &history{versions: map[string]int64{}} }

func (h *history) event(stream, kind, body string) *Event {
	h.versions[stream]++
	position := int64(len(h.events) + 1)
	e := Event{
		Cluster: "c", Position: position, Stream: stream, Version: h.versions[stream], Type: kind, Schema: 1,
		ID: fmt.Sprintf("00000000-0000-4000-8000-%012d", position), Actor: "test", RecordedAt: position, Subject: "default/p", Body: body,
	}
	h.events = append(h.events, e)
	return &h.events[position-1]
}

// chained gives all events the hashes that they must have.
func (h *history) chained() []Event {
	previous := make([]byte, 32)
	for index := range h.events {
		h.events[index].Hash = hashOf(previous, &h.events[index])
		previous, _ = hex.DecodeString(h.events[index].Hash)
	}
	return h.events
}

// append notes an append that a client called and was answered.
func (h *history) append(client string, call, back int64, expect map[string]int64, events ...*Event) {
	c := Call{Cluster: "c", Client: client, Number: call, Phase: "call", At: call, Operation: "append", Expect: expect}
	answer := Call{Cluster: "c", Client: client, Number: call, Phase: "return", At: back, Operation: "append"}
	for _, e := range events {
		c.IDs, c.Streams = append(c.IDs, e.ID), append(c.Streams, e.Stream)
		answer.Positions = append(answer.Positions, e.Position)
	}
	h.calls = append(h.calls, c)
	if back > 0 {
		h.calls = append(h.calls, answer)
	}
}

func (h *history) check(t *testing.T, journal *Journal) *Report {
	t.Helper()
	recording := &Recording{Events: map[string][]Event{"c": h.chained()}, Appends: map[string][]Call{"c": h.calls}}
	if journal != nil {
		recording.Cluster, recording.Journal = "c", journal
	}
	return check(recording)
}

// refused tells whether a report says so, and nothing else.
func refused(t *testing.T, report *Report, message string) {
	t.Helper()
	if len(report.Findings) != 1 || !strings.Contains(report.Findings[0], message) {
		t.Errorf("got %q, want one finding with %q", report.Findings, message)
	}
}

func accepted(t *testing.T, report *Report) {
	t.Helper()
	if len(report.Findings) != 0 {
		t.Errorf("got %q, want no finding", report.Findings)
	}
}

func TestPositionsWithAGapAreRefused(t *testing.T) {
	h := newHistory()
	h.event("node/a", "NodeDeleted", `{}`)
	h.event("node/a", "NodeDeleted", `{}`).Position = 3
	refused(t, h.check(t, nil), "gap: cluster c: position 3 follows position 1")
}

func TestAStreamWithAGapIsRefused(t *testing.T) {
	h := newHistory()
	h.event("node/a", "NodeDeleted", `{}`)
	h.event("node/a", "NodeDeleted", `{}`).Version = 3
	refused(t, h.check(t, nil), "stream-gap: cluster c: position 2: stream node/a has version 3 after 1")
}

func TestAnEventThatIsThereTwiceIsRefused(t *testing.T) {
	h := newHistory()
	first := h.event("node/a", "NodeDeleted", `{}`).ID
	h.event("node/a", "NodeDeleted", `{}`).ID = first
	refused(t, h.check(t, nil), "is at positions 1 and 2")
}

func TestAChangedEventIsRefused(t *testing.T) {
	h := newHistory()
	h.event("node/a", "NodeDeleted", `{}`)
	events := h.chained()
	events[0].Body = `{"name":"b"}`
	report := newReport()
	checkLog(report, "c", events)
	refused(t, report, "position 1 does not have the hash of its contents")
}

func TestAppendsInAnyOrderThatExplainsTheirAnswersAreAccepted(t *testing.T) {
	h := newHistory()
	one, two := h.event("node/a", "NodeDeleted", `{}`), h.event("node/a", "NodeDeleted", `{}`)
	h.append("second", 1, 9, map[string]int64{"node/a": 1}, two)
	h.append("first", 2, 8, map[string]int64{"node/a": 0}, one)
	h.append("first", 10, 0, nil, &Event{ID: "never", Stream: "node/a"})
	accepted(t, h.check(t, nil))
}

func TestAnUnansweredAppendMayHaveSucceeded(t *testing.T) {
	h := newHistory()
	one, two := h.event("node/a", "NodeDeleted", `{}`), h.event("node/b", "NodeDeleted", `{}`)
	h.append("killed", 1, 0, nil, one)
	h.append("other", 5, 6, map[string]int64{"node/a": 1}, two)
	accepted(t, h.check(t, nil))
}

func TestALostAppendIsRefused(t *testing.T) {
	h := newHistory()
	h.event("node/a", "NodeDeleted", `{}`)
	h.append("one", 1, 2, nil, &Event{ID: "lost", Stream: "node/a", Position: 2})
	report := h.check(t, nil)
	if len(report.Findings) == 0 || !strings.HasPrefix(report.Findings[0], "lost: cluster c: event lost was acknowledged at position 2") {
		t.Errorf("got %q", report.Findings)
	}
}

func TestALostUpdateIsRefused(t *testing.T) {
	h := newHistory()
	one, two := h.event("node/a", "NodeDeleted", `{}`), h.event("node/a", "NodeDeleted", `{}`)
	h.append("one", 1, 4, map[string]int64{"node/a": 0}, one)
	h.append("two", 2, 3, map[string]int64{"node/a": 0}, two)
	refused(t, h.check(t, nil), "there is no place for: append to [node/a] expecting map[node/a:0] -> positions [2]")
}

func TestAnAppendBeforeItsCallIsRefused(t *testing.T) {
	h := newHistory()
	one, two := h.event("node/a", "NodeDeleted", `{}`), h.event("node/b", "NodeDeleted", `{}`)
	h.append("late", 5, 6, nil, one)
	h.append("early", 1, 2, nil, two)
	refused(t, h.check(t, nil), "appends: cluster c: no order of the 2 appends and reads explains their answers")
}

func TestAHeadThatGoesBackIsRefused(t *testing.T) {
	h := newHistory()
	one := h.event("node/a", "NodeDeleted", `{}`)
	h.append("one", 1, 2, nil, one)
	h.calls = append(h.calls, Call{Cluster: "c", Client: "r", Number: 1, Phase: "call", At: 3, Operation: "head"},
		Call{Cluster: "c", Client: "r", Number: 1, Phase: "return", At: 4, Operation: "head", Position: 0})
	refused(t, h.check(t, nil), "there is no place for: head -> 0")
}

func TestHalfAnAppendIsRefused(t *testing.T) {
	h := newHistory()
	one := h.event("node/a", "NodeDeleted", `{}`)
	h.append("killed", 1, 0, nil, one, &Event{ID: "other", Stream: "node/a"})
	refused(t, h.check(t, nil), "half: cluster c: of one append of client killed, 1 of 2 events are in the log")
}

const (
	nodeText     = `{"node":{"name":"n","allocatable":{"cpu":8000,"pods":10}}}`
	topologyText = `{"topology":{"node":"n","zones":[{"name":"z0","resources":{"cpu":{"allocatable":4000}}}]}}`
)

func podText(uid, phase, node, cpu string) string {
	return fmt.Sprintf(`{"pod":{"uid":"%s","scheduler_name":"kai-ledger","phase":"%s","node_name":"%s",`+
		`"labels":{"kai.scheduler/queue":"q"},"containers":[{"requests":{"cpu":%s}}]}}`, uid, phase, node, cpu)
}

func placedText(uid, cpu string) string {
	return fmt.Sprintf(`{"uid":"%s","node":"n","placement":{"containers":[{"zones":[{"zone":"z0","amount":{"cpu":%s}}]}]}}`, uid, cpu)
}

func TestAZoneThatIsPromisedTwiceIsRefused(t *testing.T) {
	h := newHistory()
	h.event("node/n", "NodeObserved", nodeText)
	h.event("nrt/n", "TopologyObserved", topologyText)
	for _, uid := range []string{"a", "b"} {
		h.event("pod/"+uid, "PodObserved", podText(uid, "Pending", "", "3000"))
		h.event("pod/"+uid, "PodPlaced", placedText(uid, "3000"))
	}
	refused(t, h.check(t, nil), "position 6 promises pod default/p 3000 of cpu in zone z0 on node n, where 1000 of 4000 were left")
}

func TestAZoneThatWasReleasedMayBePromisedAgain(t *testing.T) {
	for _, release := range [][2]string{
		{"PodObserved", podText("a", "Succeeded", "n", "3000")},
		{"PodDeleted", `{"uid":"a"}`},
		{"PodRejected", `{"uid":"a","node":"n"}`},
		{"BindFailed", `{"uid":"a","node":"n","code":409}`},
	} {
		h := newHistory()
		h.event("node/n", "NodeObserved", nodeText)
		h.event("nrt/n", "TopologyObserved", topologyText)
		h.event("pod/a", "PodObserved", podText("a", "Pending", "", "3000"))
		h.event("pod/a", "PodPlaced", placedText("a", "3000"))
		h.event("pod/a", release[0], release[1])
		h.event("pod/b", "PodObserved", podText("b", "Pending", "", "3000"))
		h.event("pod/b", "PodPlaced", placedText("b", "3000"))
		accepted(t, h.check(t, nil))
	}
}

func TestWhatFactsBringIsNoPromise(t *testing.T) {
	h := newHistory()
	h.event("node/n", "NodeObserved", nodeText)
	h.event("nrt/n", "TopologyObserved", topologyText)
	h.event("pod/a", "PodObserved", podText("a", "Pending", "", "3000"))
	h.event("pod/a", "PodPlaced", placedText("a", "3000"))
	h.event("pod/b", "PodObserved", podText("b", "Running", "n", "3000"))
	h.event("pod/b", "PlacementObserved", placedText("b", "3000"))
	accepted(t, h.check(t, nil))
	h.event("pod/c", "PodObserved", podText("c", "Pending", "", "1000"))
	h.event("pod/c", "PodPlaced", placedText("c", "1000"))
	refused(t, h.check(t, nil), "promises pod default/p 1000 of cpu in zone z0 on node n, where 0 of 4000 were left")
}

func TestAQueueAboveItsLimitIsRefused(t *testing.T) {
	h := newHistory()
	h.event("queue/top", "QueueObserved", `{"queue":{"name":"top","shares":{"cpu":{"limit":5000}}}}`)
	h.event("queue/q", "QueueObserved", `{"queue":{"name":"q","parent":"top","shares":{"cpu":{}}}}`)
	for _, uid := range []string{"a", "b"} {
		h.event("pod/"+uid, "PodObserved", podText(uid, "Pending", "", "3000"))
		h.event("pod/"+uid, "PodPlaced", `{"uid":"`+uid+`","node":"n"}`)
	}
	refused(t, h.check(t, nil), "position 6 places pod default/p: queue top then has 6000 of cpu, its limit is 5000")
}

func TestAPodThatIsBeingDeletedIsNotHeldAgainstItsQueue(t *testing.T) {
	h := newHistory()
	h.event("queue/q", "QueueObserved", `{"queue":{"name":"q","shares":{"cpu":{"limit":5000}}}}`)
	h.event("pod/a", "PodObserved", podText("a", "Pending", "", "3000"))
	h.event("pod/a", "PodPlaced", `{"uid":"a","node":"n"}`)
	leaving := strings.Replace(podText("a", "Running", "n", "3000"), `"phase"`, `"deletion_at":1,"phase"`, 1)
	h.event("pod/a", "PodObserved", leaving)
	h.event("pod/b", "PodObserved", podText("b", "Pending", "", "3000"))
	h.event("pod/b", "PodPlaced", `{"uid":"b","node":"n"}`)
	accepted(t, h.check(t, nil))
}

// bound makes the log of a pod that was bound to node n, and the API server's journal of it.
func bound(t *testing.T, nodes ...string) (*history, *Journal) {
	h := newHistory()
	h.event("node/n", "NodeObserved", nodeText)
	h.event("pod/a", "PodObserved", podText("a", "Pending", "", "1000"))
	h.event("pod/a", "PodPlaced", `{"uid":"a","node":"n"}`)
	h.event("pod/a", "PodBound", `{"uid":"a","node":"n"}`)
	h.event("pod/a", "PodObserved", podText("a", "Running", nodes[len(nodes)-1], "1000"))
	lines := []string{`1 nodes n {"metadata":{"name":"n"}}`}
	for index, node := range append([]string{""}, nodes...) {
		object, _ := json.Marshal(map[string]any{
			"metadata": map[string]string{"uid": "a", "name": "p", "namespace": "default"},
			"spec":     map[string]string{"schedulerName": "kai-ledger", "nodeName": node},
			"status":   map[string]string{"phase": "Running"},
		})
		lines = append(lines, fmt.Sprintf("%d pods default/p %s", index+2, object))
	}
	return h, journalOf(t, lines...)
}

func journalOf(t *testing.T, lines ...string) *Journal {
	t.Helper()
	directory, text := t.TempDir(), ""
	for _, line := range lines {
		text += fmt.Sprintf("%08x %s\n", crc32.ChecksumIEEE([]byte(line)), line)
	}
	if err := os.WriteFile(filepath.Join(directory, "journal-00000000000000000000"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	journal, err := readJournal(directory)
	if err != nil {
		t.Fatal(err)
	}
	return journal
}

func TestAPodThatIsBoundAsDecidedIsAccepted(t *testing.T) {
	h, journal := bound(t, "n")
	accepted(t, h.check(t, journal))
}

// givenBack makes of a bound pod one with a binding that was given up, and that a fact shows on a node afterwards.
func givenBack(h *history, node string) {
	h.events, h.versions["pod/a"] = h.events[:3], 2
	h.event("pod/a", "BindFailed", `{"uid":"a","node":"n","code":409}`)
	h.event("pod/a", "PodObserved", podText("a", "Running", node, "1000"))
}

func TestABindingThatWasCarriedOutAfterItWasGivenBackIsCounted(t *testing.T) {
	h, journal := bound(t, "n")
	givenBack(h, "n")
	report := h.check(t, journal)
	accepted(t, report)
	if report.Checked["late-binds"] != 1 {
		t.Errorf("got %v, want one late bind", report.Checked)
	}
}

func TestAPodThatIsBoundToTheNodeThatItWasGivenBackFromIsAccepted(t *testing.T) {
	h, journal := bound(t, "n")
	h.events, h.versions["pod/a"] = h.events[:3], 2
	h.event("pod/a", "BindFailed", `{"uid":"a","node":"n","code":409}`)
	h.event("pod/a", "PodPlaced", `{"uid":"a","node":"n"}`)
	h.event("pod/a", "PodBound", `{"uid":"a","node":"n"}`)
	h.event("pod/a", "PodObserved", podText("a", "Running", "n", "1000"))
	accepted(t, h.check(t, journal))
}

func TestABindingThatWasGivenBackAndIsInNoFactIsRefused(t *testing.T) {
	h, journal := bound(t, "n")
	givenBack(h, "")
	report := h.check(t, journal)
	if !strings.Contains(strings.Join(report.Findings, "\n"), "bound-untold: pod default/p is on node n") {
		t.Errorf("got %q", report.Findings)
	}
}

func TestADoubleBindIsRefused(t *testing.T) {
	h, journal := bound(t, "n", "m")
	report := h.check(t, journal)
	if !strings.Contains(strings.Join(report.Findings, "\n"), "double-bind: pod default/p was bound to node n and then to node m") {
		t.Errorf("got %q", report.Findings)
	}
	if report.Wrong["binds"] != 1 {
		t.Errorf("got %v, want one history of binds that no order explains", report.Wrong)
	}
}

func TestABindToANodeThatWasNotDecidedIsRefused(t *testing.T) {
	h, journal := bound(t, "m")
	report := h.check(t, journal)
	if !strings.Contains(strings.Join(report.Findings, "\n"), "bound-undecided: pod default/p is on node m") {
		t.Errorf("got %q", report.Findings)
	}
}

func TestAnObjectThatTheLogDoesNotHaveIsRefused(t *testing.T) {
	h := newHistory()
	h.event("node/n", "NodeObserved", nodeText)
	journal := journalOf(t, `1 nodes n {"metadata":{"name":"n"}}`,
		`2 pods default/x {"metadata":{"uid":"x","name":"x","namespace":"default"},"spec":{"schedulerName":"kai-ledger"}}`)
	refused(t, h.check(t, journal), "unseen: pod default/x is at the API server, and not in the log")
}

func TestABusThatDisagreesIsRefused(t *testing.T) {
	h := newHistory()
	h.event("node/a", "NodeDeleted", `{}`)
	h.event("node/a", "NodeDeleted", `{}`)
	events := h.chained()
	data := func(e Event) []byte {
		hash, _ := hex.DecodeString(e.Hash)
		return append([]byte("#"), hash...)
	}
	message := func(sequence int64, e Event) Message {
		return Message{Cluster: "c", Sequence: sequence, Subject: "kai.c.NodeDeleted", Data: data(e)}
	}
	for want, messages := range map[string][]Message{
		"message 2 is not the event of that position": {message(1, events[0]), message(2, events[0])},
		"the last message is 1, the last event is 2":  {message(1, events[0])},
		"message 3 is of no position of the log":      {message(2, events[1]), message(3, events[1])},
	} {
		report := newReport()
		checkBus(report, "c", events, messages)
		if !strings.Contains(strings.Join(report.Findings, "\n"), want) {
			t.Errorf("got %q, want %q", report.Findings, want)
		}
	}
}

func TestTablesThatDisagreeAreRefused(t *testing.T) {
	h := newHistory()
	h.event("node/a", "NodeDeleted", `{}`)
	var tables Tables
	text := `{"heads":{"c":{"position":2,"hash":""}},"streams":{"c":{"node/a":2}},"ids":{"c":{}}}`
	if err := json.Unmarshal([]byte(text), &tables); err != nil {
		t.Fatal(err)
	}
	report := newReport()
	checkTables(report, &Recording{Tables: &tables}, "c", h.chained())
	for _, want := range []string{"the head is position 2, the last event is position 1", "stream node/a: the table has 2", "ids:"} {
		if !strings.Contains(strings.Join(report.Findings, "\n"), want) {
			t.Errorf("got %q, want %q", report.Findings, want)
		}
	}
}

func TestAnEventThatWasReadAndIsGoneIsRefused(t *testing.T) {
	h := newHistory()
	h.event("node/a", "NodeDeleted", `{}`)
	report := newReport()
	checkObserved(report, "c", h.chained(), []Observed{{"c", 2, "ab"}, {"c", 1, "ab"}})
	if report.Wrong["lost"] != 1 || report.Wrong["changed"] != 1 {
		t.Errorf("got %v", report.Wrong)
	}
}

const gpuNodeText = `{"node":{"name":"n","labels":{"nvidia.com/gpu.memory":"40000"},"allocatable":{"cpu":8000,"pods":10,"nvidia.com/gpu":2}}}`

func openedText(group string) string {
	return fmt.Sprintf(`{"node":"n","group":"%s","namespace":"r","name":"r-%s","cycle":"c/1"}`, group, group)
}

func partsText(uid string, parts ...string) string {
	return fmt.Sprintf(`{"uid":"%s","node":"n","gpus":[%s]}`, uid, strings.Join(parts, ","))
}

func part(group string, milli, mib int) string {
	return fmt.Sprintf(`{"group":"%s","milli":%d,"mib":%d}`, group, milli, mib)
}

func reservationText(uid, group, phase string) string {
	return fmt.Sprintf(`{"pod":{"uid":"%s","namespace":"r","name":"r-%s","phase":"%s","node_name":"n","labels":{"runai-gpu-group":"%s"},`+
		`"containers":[{"requests":{"nvidia.com/gpu":1}}]}}`, uid, group, phase, group)
}

// shared makes the log of two pods that share a GPU until both are over, and the API server's journal of it.
func shared(t *testing.T) (*history, *Journal) {
	h := newHistory()
	h.event("node/n", "NodeObserved", gpuNodeText)
	for _, uid := range []string{"a", "b"} {
		h.event("pod/"+uid, "PodObserved", podText(uid, "Pending", "", "1000"))
	}
	h.event("node/n", "GpuOpened", openedText("g"))
	for _, uid := range []string{"a", "b"} {
		h.event("pod/"+uid, "PodPlaced", partsText(uid, part("g", 500, 20000)))
	}
	h.event("pod/r", "PodObserved", reservationText("r", "g", "Running"))
	for _, uid := range []string{"a", "b"} {
		h.event("pod/"+uid, "PodBound", fmt.Sprintf(`{"uid":"%s","node":"n"}`, uid))
		h.event("pod/"+uid, "PodObserved", podText(uid, "Succeeded", "n", "1000"))
	}
	h.event("node/n", "GpuClosed", `{"node":"n","group":"g","reason":"Unused"}`)
	h.event("pod/r", "PodDeleted", `{"uid":"r"}`)
	return h, journalOf(t, append(sharedLines(), `8 pods r/r-g -`)...)
}

func sharedLines() []string {
	lines := []string{`1 nodes n {"metadata":{"name":"n"}}`}
	object := func(version int, uid, labels, scheduler, node, phase string) {
		namespace, name := "default", uid
		if labels != "{}" {
			namespace, name = "r", "r-g"
		}
		lines = append(lines, fmt.Sprintf(`%d pods %s/%s {"metadata":{"uid":"%s","name":"%s","namespace":"%s","labels":%s},`+
			`"spec":{"schedulerName":"%s","nodeName":"%s"},"status":{"phase":"%s"}}`, version, namespace, name, uid, name, namespace,
			labels, scheduler, node, phase))
	}
	object(2, "a", "{}", "kai-ledger", "", "Pending")
	object(3, "b", "{}", "kai-ledger", "", "Pending")
	object(4, "r", `{"runai-gpu-group":"g","app.kubernetes.io/managed-by":"kai-ledger"}`, "default-scheduler", "n", "Running")
	object(5, "a", "{}", "kai-ledger", "n", "Succeeded")
	object(6, "b", "{}", "kai-ledger", "n", "Succeeded")
	return lines
}

func TestPodsThatShareAGpuAreAccepted(t *testing.T) {
	h, journal := shared(t)
	report := h.check(t, journal)
	accepted(t, report)
	if report.Checked["gpus"] != 1 || report.Checked["parts"] != 2 || report.Checked["reservation-pods"] != 1 {
		t.Errorf("got %v", report.Checked)
	}
}

func TestAReservationPodThatIsLeftIsRefused(t *testing.T) {
	h, _ := shared(t)
	h.events = h.events[:len(h.events)-1]
	refused(t, h.check(t, journalOf(t, sharedLines()...)), "reservation-left: pod r/r-g is there in the end, and its GPU is closed")
}

func TestAGpuThatNoReservationPodHeldIsRefused(t *testing.T) {
	h, journal := shared(t)
	journal.Pods["r"].Reserves = false
	refused(t, h.check(t, journal), "unreserved: pods were bound to GPU group g on node n, and no reservation pod ever held it")
}

func TestAReservationPodOfNoOpenedGpuIsRefused(t *testing.T) {
	h, journal := shared(t)
	stray := *journal.Pods["r"]
	stray.Name = "r-other"
	journal.Pods["stray"] = &stray
	report := h.check(t, journal)
	if !strings.Contains(strings.Join(report.Findings, "\n"), "reservation-undecided: pod r/r-other holds a GPU of node \"n\"") {
		t.Errorf("got %q", report.Findings)
	}
}

// broken makes the log of a GPU that is opened for pods a and b, and what goes wrong then.
func broken(t *testing.T, events ...[2]string) *Report {
	h := newHistory()
	h.event("node/n", "NodeObserved", gpuNodeText)
	for _, uid := range []string{"a", "b"} {
		h.event("pod/"+uid, "PodObserved", podText(uid, "Pending", "", "1000"))
	}
	h.event("node/n", "GpuOpened", openedText("g"))
	h.event("pod/a", "PodPlaced", partsText("a", part("g", 600, 0)))
	for _, event := range events {
		h.event("x", event[0], event[1])
	}
	return h.check(t, nil)
}

func TestSharesThatContradictEachOtherAreRefused(t *testing.T) {
	closed := [2]string{"GpuClosed", `{"node":"n","group":"g","reason":"Unused"}`}
	ended := [2]string{"PodDeleted", `{"uid":"a"}`}
	for want, events := range map[string][][2]string{
		"part-promised-twice: cluster c: position 6 gives pod default/p 500 thousandths of GPU group g, of which 1100": {
			{"PodPlaced", partsText("b", part("g", 500, 0))}},
		"of which 700 and 50000 MiB are promised then":                   {{"PodPlaced", partsText("b", part("g", 100, 50000))}},
		"gives pod default/p two parts of GPU group g":                   {{"PodPlaced", partsText("b", part("g", 100, 0), part("g", 100, 0))}},
		"a part of GPU group h, which is not open on node n":             {{"PodPlaced", partsText("b", part("h", 100, 0))}},
		"a part of GPU group g, which is not open on node n":             {ended, closed, {"PodPlaced", partsText("b", part("g", 100, 0))}},
		"gpu-opened-twice: cluster c: position 6 opens GPU group g":      {{"GpuOpened", openedText("g")}},
		"position 6 closes GPU group g, of which 1 pods have parts":      {closed},
		"position 8 closes GPU group g, which is not open":               {ended, closed, closed},
		"gpu-left-open: cluster c: GPU group g on node n is open in the": {ended},
		"promised-twice: cluster c: position 7 promises pod default/p 1 of nvidia.com/gpu on node n, where 0 of 2 were left": {
			{"GpuOpened", openedText("h")}, {"GpuOpened", openedText("i")}},
	} {
		report := broken(t, events...)
		if !strings.Contains(strings.Join(report.Findings, "\n"), want) {
			t.Errorf("got %q, want %q", report.Findings, want)
		}
	}
}

func TestPartsCountInTheirQueue(t *testing.T) {
	h := newHistory()
	h.event("node/n", "NodeObserved", gpuNodeText)
	h.event("queue/q", "QueueObserved", `{"queue":{"name":"q","shares":{"gpu":{"limit":1}}}}`)
	for index, uid := range []string{"a", "b", "c"} {
		h.event("pod/"+uid, "PodObserved", podText(uid, "Pending", "", "1000"))
		group := fmt.Sprint("g", index)
		h.event("node/n", "GpuOpened", openedText(group))
		if index < 2 {
			h.event("pod/"+uid, "PodPlaced", partsText(uid, part(group, 500, 0)))
		}
	}
	h.events = h.events[:len(h.events)-1]
	accepted(t, h.check(t, nil))
	h.event("pod/c", "PodPlaced", partsText("c", part("g1", 100, 0)))
	refused(t, h.check(t, nil), "queue q then has 1.1 of gpu, its limit is 1")
}
