package main

import "fmt"

// mostShown is the number of findings of one check shown in full; the rest are counted.
const mostShown = 20

// Report is what the checks came to.
type Report struct {
	Findings []string       `json:"findings"`
	Wrong    map[string]int `json:"wrong"`
	Checked  map[string]int `json:"checked"`
}

func newReport() *Report {
	return &Report{Findings: []string{}, Wrong: map[string]int{}, Checked: map[string]int{}}
}

// wrong notes that something is not as it must be.
func (r *Report) wrong(check, format string, arguments ...any) {
	r.Wrong[check]++
	if r.Wrong[check] <= mostShown {
		r.Findings = append(r.Findings, check+": "+fmt.Sprintf(format, arguments...))
	}
}

// count notes that so many more of something were looked at.
func (r *Report) count(what string, number int) {
	r.Checked[what] += number
}
