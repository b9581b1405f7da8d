package main

import "encoding/json"

// What the models read of events' bodies; all else is left out.

type amounts map[string]int64

type podBody struct {
	UID       string            `json:"uid"`
	Namespace string            `json:"namespace"`
	Name      string            `json:"name"`
	Scheduler string            `json:"scheduler_name"`
	Node      string            `json:"node_name"`
	Phase     string            `json:"phase"`
	Labels    map[string]string `json:"labels"`
	Notes     map[string]string `json:"annotations"`
	Owner     struct {
		Name string `json:"name"`
	} `json:"owner"`
	Overhead amounts `json:"overhead"`
	PodLevel amounts `json:"pod_resources"`
	Deletion *int64  `json:"deletion_at"`
	Deadline int64   `json:"active_deadline_s"`
	Parts    []struct {
		Kind     string  `json:"kind"`
		Requests amounts `json:"requests"`
	} `json:"containers"`
}

func (p *podBody) finished() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

// requests is what a pod holds of a node: its containers and sidecars together, or what starting it takes, if that is
// more; sidecars run on while the init containers after them do.
func (p *podBody) requests() amounts {
	running, sidecars, starting := amounts{}, amounts{}, amounts{}
	for _, part := range p.Parts {
		switch part.Kind {
		case "init":
			for name, amount := range part.Requests {
				starting[name] = max(starting[name], sidecars[name]+amount)
			}
		case "sidecar":
			for name, amount := range part.Requests {
				sidecars[name] += amount
				running[name] += amount
			}
		default:
			for name, amount := range part.Requests {
				running[name] += amount
			}
		}
	}
	for name, amount := range starting {
		running[name] = max(running[name], amount)
	}
	for name, amount := range p.PodLevel {
		running[name] = amount
	}
	for name, amount := range p.Overhead {
		running[name] += amount
	}
	running["pods"] = 1
	return running
}

type placementBody struct {
	Containers []struct {
		Zones []struct {
			Zone   string  `json:"zone"`
			Amount amounts `json:"amount"`
		} `json:"zones"`
		Uncertain []string `json:"uncertain"`
	} `json:"containers"`
}

// zones is what is certain to be held of each zone.
func (p *placementBody) zones() map[string]amounts {
	held := map[string]amounts{}
	if p == nil {
		return held
	}
	for _, container := range p.Containers {
		uncertain := map[string]bool{}
		for _, name := range container.Uncertain {
			uncertain[name] = true
		}
		for _, zone := range container.Zones {
			for name, amount := range zone.Amount {
				if uncertain[name] {
					continue
				}
				if held[zone.Zone] == nil {
					held[zone.Zone] = amounts{}
				}
				held[zone.Zone][name] += amount
			}
		}
	}
	return held
}

// body is the union of what the models read of all types of events.
type body struct {
	UID       string          `json:"uid"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	Code      int             `json:"code"`
	Gone      bool            `json:"gone"`
	Cycle     string          `json:"cycle"`
	Shard     string          `json:"shard"`
	Input     int64           `json:"input_position"`
	Now       int64           `json:"now"`
	Kind      string          `json:"kind"`
	Works     []string        `json:"works"`
	Reserved  *reservedBody   `json:"reservation"`
	Group     string          `json:"group"`
	Gpus      []partBody      `json:"gpus"`
	Pod       *podBody        `json:"pod"`
	Placement *placementBody  `json:"placement"`
	Node      json.RawMessage `json:"node"`
	Topology  *struct {
		Node  string `json:"node"`
		Zones []struct {
			Name      string `json:"name"`
			Resources map[string]struct {
				Allocatable int64 `json:"allocatable"`
			} `json:"resources"`
		} `json:"zones"`
	} `json:"topology"`
	Queue *struct {
		Name   string `json:"name"`
		Parent string `json:"parent"`
		Shares map[string]struct {
			Limit *int64 `json:"limit"`
		} `json:"shares"`
	} `json:"queue"`
}

type nodeBody struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Allocatable amounts           `json:"allocatable"`
}

func (b *body) nodeName() string {
	var name string
	if json.Unmarshal(b.Node, &name) == nil {
		return name
	}
	return ""
}

// decode reads an event's body; an unreadable one is a finding.
func decode(report *Report, e *Event) *body {
	var b body
	if err := json.Unmarshal([]byte(e.Body), &b); err != nil {
		report.wrong("body", "cluster %s: position %d: %s", e.Cluster, e.Position, err)
	}
	return &b
}

// reservedBody is a reservation of nodes; times are microseconds since the epoch.
type reservedBody struct {
	Name       string            `json:"name"`
	Queue      string            `json:"queue"`
	Namespace  string            `json:"namespace"`
	Work       string            `json:"work"`
	Nodes      []string          `json:"nodes"`
	Labels     map[string]string `json:"node_labels"`
	Recurrence string            `json:"recurrence"`
	Start      int64             `json:"start"`
	End        int64             `json:"end"`
	Notice     *int64            `json:"notice_us"`
	DrainBy    int64             `json:"drain_by"`
	Offsets    clocks            `json:"offsets"`
}
