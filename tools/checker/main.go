// Command kai-checker checks what a run of kai-ledger under faults left behind, against models that share no code with it.
//
//	kai-checker DIRECTORY
//
// reads the recordings in a directory (see recording.go) and prints one line for each thing that is wrong, then a
// summary as one line of JSON. Its exit code is 0 when nothing is wrong, 1 when something is, and 2 for wrong use.
package main

import (
	"encoding/json"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: kai-checker DIRECTORY")
		os.Exit(2)
	}
	recording, err := readRecording(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	report := check(recording)
	for _, finding := range report.Findings {
		fmt.Println(finding)
	}
	summary, _ := json.Marshal(report)
	fmt.Println(string(summary))
	if len(report.Findings) > 0 {
		os.Exit(1)
	}
}

// check runs every check on a recording.
func check(recording *Recording) *Report {
	report := newReport()
	for _, cluster := range recording.clusters() {
		events := recording.Events[cluster]
		checkLog(report, cluster, events)
		checkTables(report, recording, cluster, events)
		checkObserved(report, cluster, events, recording.Observed[cluster])
		checkBus(report, cluster, events, recording.Bus[cluster])
		checkAppends(report, cluster, events, recording.Appends[cluster])
		checkPromises(report, cluster, events)
		checkQueues(report, cluster, events)
		checkPlans(report, cluster, events)
		checkBlackHoles(report, cluster, events)
		gpus := checkShares(report, cluster, events)
		if recording.Cluster == cluster {
			checkObjects(report, events, recording.Journal)
			checkBinds(report, events, recording.Journal)
			checkReservations(report, gpus, recording.Journal)
		}
	}
	return report
}

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
