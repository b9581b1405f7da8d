package main

import (
	"encoding/json"
	"sort"
)

// cell is a resource of a zone; the zone is empty for the node as a whole.
type cell struct{ zone, resource string }

// tenant is a pod that is on a node, or was promised to it.
type tenant struct {
	name  string
	cells map[cell]int64
}

// ledger is what a node has, and who holds what of it.
type ledger struct {
	has     map[cell]int64
	tenants map[string]*tenant
	// By cell, how much too much facts alone brought: a kubelet that freed before the API reported it, a node that shrank.
	brought map[cell]int64
}

func (l *ledger) held(c cell) int64 {
	sum := int64(0)
	for _, t := range l.tenants {
		sum += t.cells[c]
	}
	return sum
}

// excess is how much more of each cell is held than there is.
func (l *ledger) excess() map[cell]int64 {
	over := map[cell]int64{}
	for c, has := range l.has {
		if more := l.held(c) - has; more > 0 {
			over[c] = more
		}
	}
	return over
}

// promises is the model of what was promised to whom, for all nodes.
type promises struct {
	nodes map[string]*ledger
	pods  map[string]*podBody
	at    map[string]string // node by uid
}

func (m *promises) node(name string) *ledger {
	if m.nodes[name] == nil {
		m.nodes[name] = &ledger{map[cell]int64{}, map[string]*tenant{}, map[cell]int64{}}
	}
	return m.nodes[name]
}

func (m *promises) put(uid, node, name string, zones map[string]amounts) {
	m.release(uid)
	t := &tenant{name, map[cell]int64{}}
	if pod := m.pods[uid]; pod != nil {
		for resource, amount := range pod.requests() {
			t.cells[cell{"", resource}] = amount
		}
	}
	for zone, held := range zones {
		for resource, amount := range held {
			t.cells[cell{zone, resource}] = amount
		}
	}
	m.node(node).tenants[uid] = t
	m.at[uid] = node
}

func (m *promises) release(uid string) {
	if node, there := m.at[uid]; there {
		delete(m.node(node).tenants, uid)
		delete(m.at, uid)
	}
}

// checkPromises: a decision never promises more of a zone, or of a node, than is left beside what was promised to others
// and not released. What facts bring on top is no promise, and is taken as given for the decisions after them.
func checkPromises(report *Report, cluster string, events []Event) {
	m := &promises{map[string]*ledger{}, map[string]*podBody{}, map[string]string{}}
	decisions, brought := 0, 0
	for index := range events {
		e := &events[index]
		touched := m.take(report, e)
		if touched == "" {
			continue
		}
		node := m.node(touched)
		over := node.excess()
		if e.Type == "PodPlaced" || e.Type == "GpuOpened" {
			decisions++
			b := decode(report, e)
			own := node.tenants[b.UID]
			if e.Type == "GpuOpened" {
				own = node.tenants[planned+b.Group]
			}
			for _, c := range sorted(over) {
				if own != nil && own.cells[c] > 0 && over[c] > node.brought[c] {
					report.wrong("promised-twice", "cluster %s: position %d promises pod %s %d of %s%s on node %s, where %d of %d "+
						"were left", cluster, e.Position, e.Subject, own.cells[c], c.resource, zoneOf(c), touched,
						node.has[c]-node.held(c)+own.cells[c]+node.brought[c], node.has[c])
				}
			}
		} else if len(over) > len(node.brought) {
			brought++
		}
		node.brought = over
	}
	report.count("decisions", decisions)
	report.count("contradicted", brought)
}

func zoneOf(c cell) string {
	if c.zone == "" {
		return ""
	}
	return " in zone " + c.zone
}

func sorted(over map[cell]int64) []cell {
	cells := []cell{}
	for c := range over {
		cells = append(cells, c)
	}
	sort.Slice(cells, func(a, b int) bool {
		return cells[a].zone+"\x00"+cells[a].resource < cells[b].zone+"\x00"+cells[b].resource
	})
	return cells
}

// take puts one event into the model; it returns the node on which something may be different now.
func (m *promises) take(report *Report, e *Event) string {
	switch e.Type {
	case "NodeObserved":
		b := decode(report, e)
		var observed nodeBody
		if json.Unmarshal(b.Node, &observed) != nil {
			return ""
		}
		node := m.node(observed.Name)
		for c := range node.has {
			if c.zone == "" {
				delete(node.has, c)
			}
		}
		for resource, amount := range observed.Allocatable {
			node.has[cell{"", resource}] = amount
		}
		return observed.Name
	case "TopologyObserved", "TopologyDeleted":
		b := decode(report, e)
		name := b.nodeName()
		if b.Topology != nil {
			name = b.Topology.Node
		}
		node := m.node(name)
		for c := range node.has {
			if c.zone != "" {
				delete(node.has, c)
			}
		}
		if b.Topology != nil {
			for _, zone := range b.Topology.Zones {
				for resource, amount := range zone.Resources {
					node.has[cell{zone.Name, resource}] = amount.Allocatable
				}
			}
		}
		return name
	case "PodObserved":
		pod := decode(report, e).Pod
		m.pods[pod.UID] = pod
		before := m.at[pod.UID]
		if pod.finished() {
			m.release(pod.UID)
			return before
		}
		hold := planned + pod.Labels[groupLabel]
		if one := m.node(pod.Node).tenants[hold]; pod.Node != "" && before == "" && one != nil && one.name == pod.Name {
			// The reservation pod takes the place of the planned one, with the zones that were predicted for that.
			m.node(pod.Node).tenants[pod.UID], m.at[pod.UID] = one, pod.Node
			m.release(hold)
			return pod.Node
		}
		if pod.Node != "" && before != pod.Node {
			m.put(pod.UID, pod.Node, e.Subject, nil)
			return pod.Node
		}
		return before
	case "PodDeleted", "PodRejected":
		uid := decode(report, e).UID
		before := m.at[uid]
		m.release(uid)
		return before
	case "BindFailed":
		b := decode(report, e)
		before := m.at[b.UID]
		if pod := m.pods[b.UID]; pod != nil && pod.Node != "" {
			return ""
		}
		m.release(b.UID)
		return before
	case "PodPlaced":
		b := decode(report, e)
		if pod := m.pods[b.UID]; pod != nil && pod.finished() {
			return ""
		}
		m.put(b.UID, b.nodeName(), e.Subject, b.Placement.zones())
		return b.nodeName()
	case "GpuOpened":
		b := decode(report, e)
		hold := planned + b.Group
		m.put(hold, b.nodeName(), b.Name, b.Placement.zones())
		cells := m.node(b.nodeName()).tenants[hold].cells
		cells[cell{"", reservedUnit}], cells[cell{"", "pods"}] = 1, 1
		return b.nodeName()
	case "GpuClosed":
		b := decode(report, e)
		m.release(planned + b.Group)
		return b.nodeName()
	case "PlacementObserved":
		b := decode(report, e)
		if m.at[b.UID] != b.nodeName() {
			return ""
		}
		m.put(b.UID, b.nodeName(), e.Subject, b.Placement.zones())
		return b.nodeName()
	}
	return ""
}
