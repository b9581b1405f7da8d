package main

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A rule of recurrence, as RFC 5545 has it, day by day: slow and plain. The clock of a window is that of its start, by the
// offsets that the reservation has.

const (
	day = int64(86_400_000_000)
	// Without a window in so many days a reservation is over: weekdays and leap days come together again by then.
	searched = 41 * 366
)

var weekdays = []string{"SU", "MO", "TU", "WE", "TH", "FR", "SA"}

// rule is a recurrence; count is how many repetitions it has, 0 for no end.
type rule struct {
	frequency       string
	interval, count int64
	until           int64
	weekStart       int64
	byDay           []string
	byMonthDay      []int64
	byMonth         []int64
}

// ruleOf reads a rule; false where this checker does not know a part of it.
func ruleOf(text string) (*rule, bool) {
	r := &rule{interval: 1, until: math.MaxInt64, weekStart: 1}
	for _, part := range strings.Split(strings.ToUpper(text), ";") {
		name, value, _ := strings.Cut(part, "=")
		switch name {
		case "FREQ":
			r.frequency = value
		case "INTERVAL":
			r.interval, _ = strconv.ParseInt(value, 10, 64)
		case "COUNT":
			r.count, _ = strconv.ParseInt(value, 10, 64)
		case "UNTIL":
			until, err := time.Parse("20060102T150405Z", value)
			if err != nil {
				return nil, false
			}
			r.until = until.UnixMicro()
		case "WKST":
			r.weekStart = int64(slices.Index(weekdays, value))
		case "BYDAY":
			r.byDay = strings.Split(value, ",")
		case "BYMONTHDAY":
			r.byMonthDay = numbers(value)
		case "BYMONTH":
			r.byMonth = numbers(value)
		default:
			return nil, false
		}
	}
	known := slices.Contains([]string{"DAILY", "WEEKLY", "MONTHLY", "YEARLY"}, r.frequency)
	return r, known && r.interval > 0 && r.weekStart >= 0
}

func numbers(text string) []int64 {
	found := []int64{}
	for _, one := range strings.Split(text, ",") {
		number, _ := strconv.ParseInt(one, 10, 64)
		found = append(found, number)
	}
	return found
}

// holds tells whether a rule that begins on a day has a repetition on another one, that is not before it.
func (r *rule) holds(first, at time.Time) bool {
	months := int64(at.Year()-first.Year())*12 + int64(at.Month()-first.Month())
	days := daysOf(at) - daysOf(first)
	weekday, monthDay := weekdays[at.Weekday()], int64(at.Day())
	inMonth := len(r.byMonth) == 0 || slices.Contains(r.byMonth, int64(at.Month()))
	free := len(r.byDay) == 0 && len(r.byMonthDay) == 0
	switch r.frequency {
	case "DAILY":
		return days%r.interval == 0 && inMonth && r.onDay(at, false) && r.onMonthDay(at)
	case "WEEKLY":
		weeks := weekOf(at, r.weekStart) - weekOf(first, r.weekStart)
		onDay := r.onDay(at, false) && r.onMonthDay(at)
		if free {
			onDay = weekday == weekdays[first.Weekday()]
		}
		return weeks%r.interval == 0 && inMonth && onDay
	case "MONTHLY":
		if free {
			return months%r.interval == 0 && inMonth && monthDay == int64(first.Day())
		}
		return months%r.interval == 0 && inMonth && r.onDay(at, false) && r.onMonthDay(at)
	}
	if int64(at.Year()-first.Year())%r.interval != 0 || !inMonth {
		return false
	}
	if free {
		return monthDay == int64(first.Day()) && (len(r.byMonth) > 0 || at.Month() == first.Month())
	}
	return r.onDay(at, len(r.byMonth) == 0) && r.onMonthDay(at)
}

// onDay tells whether a day is one of BYDAY: any such weekday, or the nth of its month, or of its year.
func (r *rule) onDay(at time.Time, ofYear bool) bool {
	if len(r.byDay) == 0 {
		return true
	}
	begin := time.Date(at.Year(), at.Month(), 1, 0, 0, 0, 0, time.UTC)
	end := begin.AddDate(0, 1, 0)
	if ofYear {
		begin = time.Date(at.Year(), 1, 1, 0, 0, 0, 0, time.UTC)
		end = begin.AddDate(1, 0, 0)
	}
	fromBegin := (daysOf(at)-daysOf(begin))/7 + 1
	fromEnd := -((daysOf(end)-daysOf(at)-1)/7 + 1)
	for _, one := range r.byDay {
		name := one[len(one)-2:]
		if name != weekdays[at.Weekday()] {
			continue
		}
		number, err := strconv.ParseInt(one[:len(one)-2], 10, 64)
		if err != nil || r.frequency == "DAILY" || r.frequency == "WEEKLY" || number == fromBegin || number == fromEnd {
			return true
		}
	}
	return false
}

func (r *rule) onMonthDay(at time.Time) bool {
	if len(r.byMonthDay) == 0 {
		return true
	}
	last := time.Date(at.Year(), at.Month()+1, 0, 0, 0, 0, 0, time.UTC).Day()
	return slices.Contains(r.byMonthDay, int64(at.Day())) || slices.Contains(r.byMonthDay, int64(at.Day()-last-1))
}

func daysOf(at time.Time) int64 { return at.Unix() / 86_400 }

// weekOf numbers weeks; 1 January 1970 was a Thursday, the fourth day after Sunday.
func weekOf(at time.Time, begins int64) int64 { return (daysOf(at) + (4-begins+7)%7) / 7 }

// clocks are the offsets of a zone: pairs of a time and of the seconds ahead of UTC since then; none for UTC.
type clocks [][2]int64

// local is what the clocks show.
func (c clocks) local(at int64) int64 {
	for index := len(c) - 1; index >= 0; index-- {
		if index == 0 || at >= c[index][0] {
			return at + c[index][1]*1_000_000
		}
	}
	return at
}

// at is when the clocks show a time first; one that they skip is counted by the offset before.
func (c clocks) at(shown int64) int64 {
	for index := len(c) - 1; index >= 0; index-- {
		if index == 0 || shown >= c[index][0]+max(c[index-1][1], c[index][1])*1_000_000 {
			return shown - c[index][1]*1_000_000
		}
	}
	return shown
}

// window is a stretch of time.
type window struct{ start, end int64 }

// windowAt is the window of a plan in which a time is, or else the next one; false after the last.
func (p *plan) windowAt(now int64) (window, bool) {
	if now < p.End {
		return window{p.Start, p.End}, true
	}
	if p.rule == nil {
		return window{}, false
	}
	length := p.End - p.Start
	for _, start := range p.repetitions(now - length) {
		if start > now-length {
			return window{start, start + length}, true
		}
	}
	return window{}, false
}

// repetitions is when windows begin: all up to the first one after a time.
func (p *plan) repetitions(after int64) []int64 {
	start := p.Start - p.Start%1_000_000
	shown := p.Offsets.local(start)
	clock := ((shown % day) + day) % day
	first := time.UnixMicro(shown - clock).UTC()
	for !p.over && (len(p.starts) == 0 || p.starts[len(p.starts)-1] <= after) {
		p.over = true
		for range searched {
			today := first.AddDate(0, 0, p.days)
			p.days++
			if !p.rule.holds(first, today) {
				continue
			}
			begin := p.Offsets.at(today.UnixMicro() + clock)
			if p.rule.count > 0 && int64(len(p.starts)) == p.rule.count || begin > p.rule.until {
				return p.starts
			}
			p.starts, p.over = append(p.starts, begin), false
			break
		}
	}
	return p.starts
}
