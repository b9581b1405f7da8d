package main

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func moment(t *testing.T, text string) int64 {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at.UnixMicro()
}

// berlin has the offsets of 2027: an hour more from 28 March on, and less from 31 October on.
func berlin(t *testing.T) clocks {
	return clocks{{0, 3600}, {moment(t, "2027-03-28T01:00:00Z"), 7200}, {moment(t, "2027-10-31T01:00:00Z"), 3600}}
}

func TestWindowsComeAgainByRuleAndClock(t *testing.T) {
	for _, one := range []struct {
		start, rule string
		offsets     clocks
		expected    []string
	}{
		{"2027-01-02T02:00:00Z", "FREQ=WEEKLY;BYDAY=SA;COUNT=3", nil,
			[]string{"2027-01-02T02:00:00Z", "2027-01-09T02:00:00Z", "2027-01-16T02:00:00Z"}},
		{"2027-01-31T00:00:00Z", "FREQ=MONTHLY;UNTIL=20270601T000000Z", nil,
			[]string{"2027-01-31T00:00:00Z", "2027-03-31T00:00:00Z", "2027-05-31T00:00:00Z"}},
		{"2027-01-29T00:00:00Z", "FREQ=MONTHLY;BYDAY=-1FR;COUNT=3", nil,
			[]string{"2027-01-29T00:00:00Z", "2027-02-26T00:00:00Z", "2027-03-26T00:00:00Z"}},
		{"2027-01-31T00:00:00Z", "FREQ=MONTHLY;BYMONTHDAY=-1;INTERVAL=2;COUNT=2", nil,
			[]string{"2027-01-31T00:00:00Z", "2027-03-31T00:00:00Z"}},
		{"2027-01-05T00:00:00Z", "FREQ=WEEKLY;INTERVAL=2;BYDAY=TU,SU;WKST=SU;COUNT=4", nil,
			[]string{"2027-01-05T00:00:00Z", "2027-01-17T00:00:00Z", "2027-01-19T00:00:00Z", "2027-01-31T00:00:00Z"}},
		{"2027-11-01T00:00:00Z", "FREQ=YEARLY;BYMONTH=11;BYDAY=1MO;COUNT=2", nil,
			[]string{"2027-11-01T00:00:00Z", "2028-11-06T00:00:00Z"}},
		// The clocks go from two to three, and back.
		{"2027-03-27T01:30:00Z", "FREQ=DAILY;COUNT=3", berlin(t),
			[]string{"2027-03-27T01:30:00Z", "2027-03-28T01:30:00Z", "2027-03-29T00:30:00Z"}},
		{"2027-10-30T00:30:00Z", "FREQ=DAILY;COUNT=3", berlin(t),
			[]string{"2027-10-30T00:30:00Z", "2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"}},
	} {
		start := moment(t, one.start)
		made := plan{reservedBody: &reservedBody{Start: start, End: start + 1, Offsets: one.offsets}}
		made.rule, _ = ruleOf(one.rule)
		found := []string{}
		for now := start; ; {
			next, there := made.windowAt(now)
			if !there {
				break
			}
			found = append(found, time.UnixMicro(next.start).UTC().Format(time.RFC3339))
			now = next.end
		}
		if !slices.Equal(found, one.expected) {
			t.Errorf("%s from %s: %v", one.rule, one.start, found)
		}
	}
}

func TestWhatRunsIntoALaterWindowIsRefused(t *testing.T) {
	endless, daily := podText("a", "Pending", "", "1000"), `,"recurrence":"FREQ=DAILY"`
	days := 2 * day
	refused(t, reserved(daily, endless, days+150*second, true).check(t, nil), "reserved: cluster c: position 4 places pod")
	refused(t, reserved(daily, limited(10), days+95*second, true).check(t, nil), "reserved: cluster c: position 4 places pod")
	accepted(t, reserved(daily, limited(10), days+201*second, true).check(t, nil))
	accepted(t, reserved(daily+`,"queue":"q"`, endless, days+150*second, true).check(t, nil))
	accepted(t, reserved(`,"recurrence":"FREQ=DAILY;COUNT=2"`, endless, days+150*second, true).check(t, nil))
	refused(t, reserved(`,"recurrence":"FREQ=HOURLY"`, endless, 0, true).check(t, nil), "recurrence: cluster c: position 2")
	// An hour ahead, and two since the first day is over: the window comes an hour earlier.
	zone := fmt.Sprintf(`,"notice_us":0,"offsets":[[0,3600],[%d,7200]]`, day)
	accepted(t, reserved(daily+zone, endless, days+150*second, true).check(t, nil))
	refused(t, reserved(daily+zone, endless, days+150*second-3600*second, true).check(t, nil), "reserved: cluster c")
}

func TestWhatStartsOnANodeThatLabelsReserveIsRefused(t *testing.T) {
	endless := podText("a", "Pending", "", "1000")
	labelled := func(asked, there string) *history {
		h := newHistory()
		h.event("node/n", "NodeObserved", fmt.Sprintf(`{"node":{"name":"n","labels":%s,%s`, there, nodeText[len(`{"node":{"name":"n",`):]))
		text := fmt.Sprintf(`{"reservation":{"name":"r","node_labels":%s,"start":%d,"end":%d}}`, asked, 100*second, 200*second)
		position := h.event("reservation/r", "ReservationObserved", text).Position
		h.event("pod/a", "PodObserved", endless)
		h.event("pod/a", "PodPlaced", `{"uid":"a","node":"n","cycle":"c/1"}`)
		cycle(h, "c/1", position, 150*second)
		return h
	}
	refused(t, labelled(`{"rack":"a"}`, `{"rack":"a","zone":"z"}`).check(t, nil), "reserved: cluster c: position 4 places pod")
	refused(t, labelled(`{}`, `{}`).check(t, nil), "reserved: cluster c: position 4 places pod")
	accepted(t, labelled(`{"rack":"a"}`, `{"rack":"b"}`).check(t, nil))
	accepted(t, labelled(`{"rack":""}`, `{}`).check(t, nil))
	// The cycle knew other labels than there are by now.
	h := labelled(`{"rack":"a"}`, `{"rack":"b"}`)
	h.event("node/n", "NodeObserved", `{"node":{"name":"n","labels":{"rack":"a"}}}`)
	accepted(t, h.check(t, nil))
}
