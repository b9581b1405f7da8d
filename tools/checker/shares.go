package main

import (
	"encoding/json"
	"sort"
	"strconv"
)

const (
	whole        = 1000 // thousandths of a GPU
	groupLabel   = "runai-gpu-group"
	memoryLabel  = "nvidia.com/gpu.memory"
	reservedUnit = "nvidia.com/gpu"
	planned      = "gpu-group/" // begins what holds a GPU until its reservation pod was seen
)

// partBody is what a pod gets of a GPU group.
type partBody struct {
	Group string `json:"group"`
	Milli int64  `json:"milli"`
	MiB   int64  `json:"mib"`
}

// gpu is one that was opened for shares.
type gpu struct {
	node, namespace, name string
	closed                bool
	parts                 map[string]partBody // by uid
	served                bool                // a pod with a part of it was bound
}

// reserves tells whether a pod is the reservation pod of a GPU that was opened, by what the decision says.
func (g *gpu) reserves(namespace, name, node string) bool {
	return g.namespace == namespace && g.name == name && g.node == node
}

// checkShares: a GPU is opened once and closed once, when nobody has a part of it; its parts together are one GPU at most,
// in thousandths and in memory; a pod has parts of different GPUs of its own node; none is open in the end.
func checkShares(report *Report, cluster string, events []Event) map[string]*gpu {
	gpus, memory, onNode := map[string]*gpu{}, map[string]int64{}, map[string]bool{}
	holds := map[string][]string{}
	release := func(uid string) {
		for _, group := range holds[uid] {
			delete(gpus[group].parts, uid)
		}
		delete(holds, uid)
	}
	for index := range events {
		e := &events[index]
		switch e.Type {
		case "NodeObserved":
			observed := struct {
				Name   string            `json:"name"`
				Labels map[string]string `json:"labels"`
			}{}
			if json.Unmarshal(decode(report, e).Node, &observed) == nil {
				mib, _ := strconv.ParseInt(observed.Labels[memoryLabel], 10, 64)
				memory[observed.Name] = mib
			}
		case "GpuOpened":
			b := decode(report, e)
			if gpus[b.Group] != nil {
				report.wrong("gpu-opened-twice", "cluster %s: position %d opens GPU group %s again", cluster, e.Position, b.Group)
				continue
			}
			gpus[b.Group] = &gpu{b.nodeName(), b.Namespace, b.Name, false, map[string]partBody{}, false}
			report.count("gpus", 1)
		case "GpuClosed":
			b := decode(report, e)
			g := gpus[b.Group]
			if g == nil || g.closed {
				report.wrong("gpu-closed", "cluster %s: position %d closes GPU group %s, which is not open", cluster, e.Position, b.Group)
				continue
			}
			if g.closed = true; len(g.parts) > 0 {
				report.wrong("gpu-closed", "cluster %s: position %d closes GPU group %s, of which %d pods have parts", cluster,
					e.Position, b.Group, len(g.parts))
			}
		case "PodObserved":
			pod := decode(report, e).Pod
			onNode[pod.UID] = pod.Node != ""
			if pod.finished() {
				release(pod.UID)
			}
		case "PodDeleted", "PodRejected":
			release(decode(report, e).UID)
		case "BindFailed":
			if b := decode(report, e); !onNode[b.UID] {
				release(b.UID)
			}
		case "PodBound":
			for _, group := range holds[decode(report, e).UID] {
				gpus[group].served = true
			}
		case "PodPlaced":
			b := decode(report, e)
			release(b.UID)
			for _, part := range b.Gpus {
				report.count("parts", 1)
				g := gpus[part.Group]
				if g == nil || g.closed || g.node != b.nodeName() {
					report.wrong("part", "cluster %s: position %d gives pod %s a part of GPU group %s, which is not open on node %s",
						cluster, e.Position, e.Subject, part.Group, b.nodeName())
					continue
				}
				if _, there := g.parts[b.UID]; there {
					report.wrong("part", "cluster %s: position %d gives pod %s two parts of GPU group %s", cluster, e.Position, e.Subject,
						part.Group)
				}
				g.parts[b.UID] = part
				holds[b.UID] = append(holds[b.UID], part.Group)
				milli, mib := int64(0), int64(0)
				for _, held := range g.parts {
					milli, mib = milli+held.Milli, mib+held.MiB
				}
				if milli > whole || part.Milli < 1 || memory[g.node] > 0 && mib > memory[g.node] {
					report.wrong("part-promised-twice", "cluster %s: position %d gives pod %s %d thousandths of GPU group %s, of which %d "+
						"and %d MiB are promised then", cluster, e.Position, e.Subject, part.Milli, part.Group, milli, mib)
				}
			}
		}
	}
	for _, group := range names(gpus) {
		if g := gpus[group]; !g.closed && len(g.parts) == 0 {
			report.wrong("gpu-left-open", "cluster %s: GPU group %s on node %s is open in the end, and nobody has a part of it",
				cluster, group, g.node)
		}
	}
	return gpus
}

// checkReservations: each GPU that served a pod had a reservation pod; of each there is one at a time, as was decided; in
// the end there are none but those of open GPUs.
func checkReservations(report *Report, gpus map[string]*gpu, journal *Journal) {
	had := map[string]bool{}
	for _, pod := range journal.Pods {
		if !pod.Reserves {
			continue
		}
		report.count("reservation-pods", 1)
		g := gpus[pod.Group]
		if g == nil || !g.reserves(pod.Namespace, pod.Name, pod.Node) {
			report.wrong("reservation-undecided", "pod %s holds a GPU of node %q for group %q, which was not opened so", pod, pod.Node,
				pod.Group)
			continue
		}
		had[pod.Group] = true
		if !pod.Deleted && g.closed {
			report.wrong("reservation-left", "pod %s is there in the end, and its GPU is closed", pod)
		}
	}
	for _, group := range names(gpus) {
		if gpus[group].served && !had[group] {
			report.wrong("unreserved", "pods were bound to GPU group %s on node %s, and no reservation pod ever held it", group,
				gpus[group].node)
		}
	}
}

func names(gpus map[string]*gpu) []string {
	all := []string{}
	for name := range gpus {
		all = append(all, name)
	}
	sort.Strings(all)
	return all
}
