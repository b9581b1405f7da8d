package main

import (
	"fmt"
	"testing"
)

const second = int64(1_000_000)

// reserved makes the log of a cycle at a time that puts pod `a` on a node with a reservation from second 100 to 200.
func reserved(fields, pod string, now int64, known bool) *history {
	h := newHistory()
	h.event("node/n", "NodeObserved", nodeText)
	text := fmt.Sprintf(`{"reservation":{"name":"r","nodes":["n"],"start":%d,"end":%d%s}}`, 100*second, 200*second, fields)
	position := h.event("reservation/r", "ReservationObserved", text).Position
	if !known {
		position--
	}
	h.event("pod/a", "PodObserved", pod)
	h.event("pod/a", "PodPlaced", `{"uid":"a","node":"n","cycle":"c/1"}`)
	cycle(h, "c/1", position, now)
	return h
}

func cycle(h *history, name string, input, now int64) {
	h.event("cycle", "CycleCompleted", fmt.Sprintf(`{"cycle":"%s","input_position":%d,"now":%d}`, name, input, now))
}

func limited(seconds int) string {
	text := podText("a", "Pending", "", "1000")
	return fmt.Sprintf(`{"pod":{"active_deadline_s":%d,%s`, seconds, text[len(`{"pod":{`):])
}

func ofWork(fields string) string {
	text := podText("a", "Pending", "", "1000")
	return fmt.Sprintf(`{"pod":{"namespace":"d",%s,%s`, fields, text[len(`{"pod":{`):])
}

func TestWhatRunsIntoAReservedTimeIsRefused(t *testing.T) {
	endless := podText("a", "Pending", "", "1000")
	for _, h := range []*history{
		reserved("", endless, 99*second, true),
		reserved("", endless, 150*second, true),
		reserved("", limited(10), 95*second, true),
		reserved(`,"queue":"other"`, endless, 150*second, true),
		reserved(`,"notice_us":30000000`, endless, 80*second, true),
		reserved(`,"namespace":"d","work":"other"`, ofWork(`"name":"p"`), 150*second, true),
	} {
		refused(t, h.check(t, nil), "reserved: cluster c: position 4 places pod default/p on node n, which reservation r of position 2")
	}
	for _, h := range []*history{
		reserved("", endless, 150*second, false),
		reserved("", endless, 200*second, true),
		reserved("", limited(10), 90*second, true),
		reserved(`,"queue":"q"`, endless, 150*second, true),
		reserved(`,"notice_us":10000000`, endless, 80*second, true),
		reserved(`,"namespace":"d"`, ofWork(`"name":"p"`), 150*second, true),
		reserved(`,"namespace":"d","work":"p"`, ofWork(`"name":"p"`), 150*second, true),
		reserved(`,"namespace":"d","work":"j"`, ofWork(`"owner":{"name":"j"}`), 150*second, true),
		reserved(`,"namespace":"d","work":"j"`, ofWork(`"annotations":{"pod-group-name":"j"}`), 150*second, true),
	} {
		accepted(t, h.check(t, nil))
	}
}

func TestADrainedNodeWithAPodThatNobodyEvictsIsRefused(t *testing.T) {
	drained := func(evicted bool) *history {
		h := newHistory()
		h.event("node/n", "NodeObserved", nodeText)
		h.event("pod/a", "PodObserved", podText("a", "Running", "n", "1000"))
		text := fmt.Sprintf(`{"reservation":{"name":"d","nodes":["n"],"start":0,"end":%d,"drain_by":%d}}`, 200*second, 100*second)
		h.event("reservation/d", "ReservationObserved", text)
		if evicted {
			h.event("pod/a", "EvictionDecided", `{"uid":"a"}`)
		}
		for number := range int64(3) {
			cycle(h, fmt.Sprintf("c/%d", number), 3+number, (100+number)*second)
		}
		return h
	}
	refused(t, drained(false).check(t, nil), "undrained: cluster c: position 6 is the third cycle after the time of drain d")
	accepted(t, drained(true).check(t, nil))
}

func TestAFourthPodOnABlackHoleIsRefused(t *testing.T) {
	lost := func(pods int, known bool) *history {
		h := newHistory()
		h.event("node/n", "NodeObserved", nodeText)
		for number := range pods {
			uid, input := fmt.Sprint(number), int64(len(h.events))
			if !known {
				input = 1
			}
			h.event("pod/"+uid, "PodObserved", podText(uid, "Pending", "", "1000"))
			h.event("pod/"+uid, "PodPlaced", fmt.Sprintf(`{"uid":"%s","node":"n","cycle":"c/%s"}`, uid, uid))
			cycle(h, "c/"+uid, input, second)
			h.event("pod/"+uid, "PodObserved", podText(uid, "Failed", "n", "1000"))
		}
		return h
	}
	accepted(t, lost(3, true).check(t, nil))
	accepted(t, lost(5, false).check(t, nil))
	refused(t, lost(4, true).check(t, nil), "node n/plain fails pod default/p, which was put there after the log showed 3 failures")
}
