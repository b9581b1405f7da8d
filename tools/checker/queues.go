package main

import "strings"

// queue is what may be used of each resource, and what is.
type queue struct {
	parent string
	limits map[string]int64
}

// checkQueues: no decision brings the pods of a queue, those below it among them, above its limit.
func checkQueues(report *Report, cluster string, events []Event) {
	queues, pods := map[string]*queue{}, map[string]*podBody{}
	parts := map[string]int64{}             // thousandths of GPUs by uid, of pods that share them
	holding := map[string]map[string]bool{} // by queue, the uids of its pods that hold something
	checked := 0
	drop := func(uid string) {
		for _, uids := range holding {
			delete(uids, uid)
		}
	}
	for index := range events {
		e := &events[index]
		switch e.Type {
		case "QueueObserved":
			observed := decode(report, e).Queue
			q := &queue{observed.Parent, map[string]int64{}}
			for resource, share := range observed.Shares {
				if share.Limit != nil {
					q.limits[resource] = *share.Limit
				}
			}
			queues[observed.Name] = q
		case "QueueDeleted":
			delete(queues, decode(report, e).Name)
		case "PodObserved":
			pod := decode(report, e).Pod
			pods[pod.UID] = pod
			// A pod that is being deleted is not held against its queue any more (docs/reference/queues.md).
			if pod.finished() || pod.Deletion != nil {
				drop(pod.UID)
			}
		case "PodDeleted", "PodRejected":
			drop(decode(report, e).UID)
		case "BindFailed":
			b := decode(report, e)
			if pod := pods[b.UID]; pod == nil || pod.Node == "" {
				drop(b.UID)
			}
		case "PodPlaced":
			b := decode(report, e)
			pod := pods[b.UID]
			parts[b.UID] = 0
			for _, part := range b.Gpus {
				parts[b.UID] += part.Milli
			}
			if pod == nil || pod.finished() || queues[pod.Labels["kai.scheduler/queue"]] == nil {
				continue
			}
			checked++
			for name := pod.Labels["kai.scheduler/queue"]; queues[name] != nil; name = queues[name].parent {
				if holding[name] == nil {
					holding[name] = map[string]bool{}
				}
				holding[name][pod.UID] = true
				for resource, limit := range queues[name].limits {
					own, used := counted(pods[pod.UID], parts, resource), int64(0)
					for uid := range holding[name] {
						used += counted(pods[uid], parts, resource)
					}
					if own > 0 && used > limit*whole {
						report.wrong("queue-limit", "cluster %s: position %d places pod %s: queue %s then has %g of %s, its limit is %d",
							cluster, e.Position, e.Subject, name, float64(used)/whole, resource, limit)
					}
				}
			}
		}
	}
	report.count("queue-decisions", checked)
}

// counted is a pod's amount of a queue's resource, in thousandths: `gpu` stands for the GPUs of all vendors, and for parts.
func counted(pod *podBody, parts map[string]int64, resource string) int64 {
	requests := pod.requests()
	if resource != "gpu" {
		return requests[resource] * whole
	}
	sum := parts[pod.UID]
	for name, amount := range requests {
		if strings.HasSuffix(name, "/gpu") {
			sum += amount * whole
		}
	}
	return sum
}
