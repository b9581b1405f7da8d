// Records what the kubelet's own CPU, memory and topology managers decide, version by version: scenarios come in by
// standard input, one JSON object a line, and go out with the decisions, in the format of shared/data/kubelet/FORMAT.md.
// It is a template: record.py fills in what differs between versions.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"time"

	cadvisor "@CADVISOR@"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

type amounts map[string]int64

type container struct {
	Name string  `json:"name"`
	Kind string  `json:"kind"`
	Req  amounts `json:"req,omitempty"`
	Lim  amounts `json:"lim,omitempty"`
}

type block struct {
	Type string `json:"type"`
	Size int64  `json:"size"`
	Numa []int  `json:"numa"`
}

type allocation struct {
	Name     string             `json:"name"`
	Affinity []int              `json:"affinity"`
	Amounts  map[string][]int64 `json:"amounts,omitempty"`
	Memory   []block            `json:"memory,omitempty"`
}

type event struct {
	Op         string             `json:"op"`
	Pod        string             `json:"pod"`
	Qos        string             `json:"qos,omitempty"`
	Containers []container        `json:"containers,omitempty"`
	PodReq     amounts            `json:"pod_req,omitempty"`
	NodeFit    bool               `json:"node_fit"`
	Admit      bool               `json:"admit"`
	Reason     string             `json:"reason,omitempty"`
	Message    string             `json:"message,omitempty"`
	Alloc      []allocation       `json:"alloc,omitempty"`
	Placement  map[string][]int64 `json:"placement,omitempty"`
}

type node struct {
	Kubelet         string             `json:"kubelet"`
	Gates           map[string]bool    `json:"feature_gates,omitempty"`
	Zones           int                `json:"zones"`
	Sockets         int                `json:"sockets"`
	Threads         int                `json:"threads_per_core"`
	Policy          string             `json:"topology_policy"`
	Scope           string             `json:"topology_scope"`
	CPUOptions      map[string]string  `json:"cpu_manager_options,omitempty"`
	Capacity        map[string][]int64 `json:"capacity"`
	Allocatable     map[string][]int64 `json:"allocatable"`
	NodeAllocatable amounts            `json:"node_allocatable"`
}

type scenario struct {
	ID        string             `json:"id"`
	Tags      []string           `json:"tags"`
	Node      node               `json:"node"`
	Available map[string][]int64 `json:"initial_available"`
	Events    []*event           `json:"events"`
}

type always struct{}

func (always) AddSource(string)  {}
func (always) AllReady() bool    { return true }
func (always) GetPodStatus(types.UID) (v1.PodStatus, bool) { return v1.PodStatus{}, false }
func (always) UpdateContainerResources(context.Context, string, *runtimeapi.ContainerResources) error {
	return nil
}

// machine numbers CPUs so that zone z has those from z*perZone on, siblings being neighbours.
func machine(n node) *cadvisor.MachineInfo {
	info := &cadvisor.MachineInfo{NumSockets: n.Sockets}
	id, core := 0, 0
	for zone := 0; zone < n.Zones; zone++ {
		topo := cadvisor.Node{Id: zone, Memory: uint64(n.Capacity["memory"][zone])}
		for left := n.Capacity["cpu"][zone] / 1000; left > 0; left -= int64(n.Threads) {
			threads := []int{}
			for t := 0; t < n.Threads; t++ {
				threads = append(threads, id)
				id++
			}
			topo.Cores = append(topo.Cores, cadvisor.Core{Id: core, Threads: threads, SocketID: zone * n.Sockets / n.Zones})
			core++
		}
		info.Topology = append(info.Topology, topo)
	}
	info.NumCores = id
	info.NumPhysicalCores = core
	return info
}

func list(a amounts) v1.ResourceList {
	if len(a) == 0 {
		return nil
	}
	out := v1.ResourceList{}
	for name, amount := range a {
		if name == "cpu" {
			out[v1.ResourceCPU] = *resource.NewMilliQuantity(amount, resource.DecimalSI)
		} else {
			out[v1.ResourceName(name)] = *resource.NewQuantity(amount, resource.BinarySI)
		}
	}
	return out
}

func makePod(e *event) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: e.Pod, Namespace: "default", UID: types.UID(e.Pod)}}
	pod.Status.QOSClass = v1.PodQOSClass(e.Qos)
	for _, c := range e.Containers {
		lim := c.Lim
		if lim == nil {
			lim = c.Req
		}
		one := v1.Container{Name: c.Name, Resources: v1.ResourceRequirements{Requests: list(c.Req), Limits: list(lim)}}
		switch c.Kind {
		case "app":
			pod.Spec.Containers = append(pod.Spec.Containers, one)
		case "sidecar":
			always := v1.ContainerRestartPolicyAlways
			one.RestartPolicy = &always
			fallthrough
		default:
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, one)
		}
	}
	if e.PodReq != nil {
		@PODLEVEL@
	}
	return pod
}

type cpuState struct {
	Entries    map[string]map[string]string `json:"entries"`
	PodEntries map[string]struct {
		CPUSet string `json:"cpuSet"`
	} `json:"podEntries"`
	Data string `json:"data"`
}

type memBlock struct {
	NUMA []int  `json:"numaAffinity"`
	Type string `json:"type"`
	Size int64  `json:"size"`
}

type memState struct {
	Machine map[string]struct {
		Map map[string]struct {
			Reserved int64 `json:"reserved"`
		} `json:"memoryMap"`
	} `json:"machineState"`
	Entries    map[string]map[string][]memBlock `json:"entries"`
	PodEntries map[string]struct {
		Blocks []memBlock `json:"memoryBlocks"`
	} `json:"podEntries"`
	Data string `json:"data"`
}

func read(path string, into any, data func() string) {
	content, err := os.ReadFile(path)
	check(err)
	check(json.Unmarshal(content, into))
	if text := data(); text != "" {
		check(json.Unmarshal([]byte(text), into))
	}
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func run(s *scenario) {
	logger := klog.Background()
	ctx := context.Background()
	_, _ = logger, ctx
	for _, name := range []string{"PodLevelResourceManagers"} {
		_ = utilfeature.DefaultMutableFeatureGate.Set(fmt.Sprintf("%s=%v", name, s.Node.Gates[name]))
	}
	dir, err := os.MkdirTemp("", "recorder")
	check(err)
	defer os.RemoveAll(dir)
	info := machine(s.Node)
	reserved := cpuset.New()
	for cpu := 0; cpu < int(s.Node.Capacity["cpu"][0]-s.Node.Allocatable["cpu"][0])/1000; cpu++ {
		reserved = reserved.Union(cpuset.New(cpu))
	}
	topo, err := topologymanager.NewManager(@LOG@info.Topology, s.Node.Policy, s.Node.Scope, nil)
	check(err)
	reservedMemory := s.Node.Capacity["memory"][0] - s.Node.Allocatable["memory"][0]
	reservation := v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(int64(reserved.Size()), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(reservedMemory, resource.BinarySI),
	}
	cpus, err := cpumanager.NewManager(@CLOG@"static", s.Node.CPUOptions, 24*time.Hour, info, reserved, reservation, dir, topo)
	check(err)
	memory, err := memorymanager.NewManager(@CLOG@"Static", info, reservation, []kubeletconfig.MemoryReservation{{
		NumaNode: 0, Limits: v1.ResourceList{v1.ResourceMemory: *resource.NewQuantity(reservedMemory, resource.BinarySI)},
	}}, dir, topo)
	check(err)
	active := map[string]*v1.Pod{}
	pods := func() []*v1.Pod {
		out := []*v1.Pod{}
		for _, pod := range active {
			out = append(out, pod)
		}
		return out
	}
	check(cpus.Start(@CTX@pods, always{}, always{}, always{}, containermap.NewContainerMap()))
	check(memory.Start(@CTX@pods, always{}, always{}, always{}, containermap.NewContainerMap()))
	topo.AddHintProvider(@HLOG@cpus)
	topo.AddHintProvider(@HLOG@memory)
	zoneOf := map[int]int{}
	for _, zone := range info.Topology {
		for _, core := range zone.Cores {
			for _, thread := range core.Threads {
				zoneOf[thread] = zone.Id
			}
		}
	}
	held := map[string]amounts{}
	for _, e := range s.Events {
		if e.Op == "remove" {
			delete(active, e.Pod)
			delete(held, e.Pod)
			continue
		}
		pod := makePod(e)
		e.NodeFit = fits(s, held, whole(e))
		// What ended is freed at the head of the next admission; here before, so that what is taken can be told.
		probe := makePod(&event{Pod: "probe", Qos: "Guaranteed", Containers: []container{{Name: "c", Kind: "app", Req: amounts{"cpu": 1000, "memory": 1}}}})
		cpus.GetTopologyHints(@HINTCTX@probe, &probe.Spec.Containers[0]@OP@)
		memory.GetTopologyHints(@HINTCTX@probe, &probe.Spec.Containers[0]@OP@)
		before := memState{}
		read(filepath.Join(dir, "memory_manager_state"), &before, func() string { return before.Data })
		active[e.Pod] = pod
		result := topo.Admit(@ACTX@&lifecycle.PodAdmitAttributes{Pod: pod@ATTROP@})
		e.Admit = result.Admit
		if !result.Admit {
			e.Reason, e.Message = result.Reason, result.Message
			delete(active, e.Pod)
			continue
		}
		held[e.Pod] = whole(e)
		record(s, e, pod, dir, before, zoneOf, topo)
	}
}

func whole(e *event) amounts {
	out := amounts{}
	for _, c := range e.Containers {
		if c.Kind != "init" {
			for name, amount := range c.Req {
				out[name] += amount
			}
		}
	}
	for _, c := range e.Containers {
		for name, amount := range c.Req {
			if c.Kind == "init" && amount > out[name] {
				out[name] = amount
			}
		}
	}
	for name, amount := range e.PodReq {
		out[name] = amount
	}
	return out
}

func fits(s *scenario, held map[string]amounts, asked amounts) bool {
	total := amounts{}
	for name, amount := range asked {
		total[name] += amount
	}
	for _, one := range held {
		for name, amount := range one {
			total[name] += amount
		}
	}
	for name, amount := range total {
		if amount > s.Node.NodeAllocatable[name] {
			return false
		}
	}
	return true
}

func record(s *scenario, e *event, pod *v1.Pod, dir string, before memState, zoneOf map[int]int, topo topologymanager.Manager) {
	cpuFile, memFile := cpuState{}, memState{}
	read(filepath.Join(dir, "cpu_manager_state"), &cpuFile, func() string { return cpuFile.Data })
	read(filepath.Join(dir, "memory_manager_state"), &memFile, func() string { return memFile.Data })
	e.Placement = map[string][]int64{"cpu": make([]int64, s.Node.Zones), "memory": make([]int64, s.Node.Zones)}
	for zone := 0; zone < s.Node.Zones; zone++ {
		name := strconv.Itoa(zone)
		e.Placement["memory"][zone] = memFile.Machine[name].Map["memory"].Reserved - before.Machine[name].Map["memory"].Reserved
	}
	add := func(name, cpulist string, blocks []memBlock) {
		item := allocation{Name: name}
		asking := name
		if name == "" {
			asking = append(pod.Spec.InitContainers, pod.Spec.Containers...)[0].Name
		}
		if mask := topo.GetAffinity(@HLOG@e.Pod, asking).NUMANodeAffinity; mask != nil {
			item.Affinity = mask.GetBits()
		}
		set, err := cpuset.Parse(cpulist)
		check(err)
		if set.Size() > 0 {
			zones := make([]int64, s.Node.Zones)
			for _, cpu := range set.List() {
				zones[zoneOf[cpu]] += 1000
				e.Placement["cpu"][zoneOf[cpu]] += 1000
			}
			item.Amounts = map[string][]int64{"cpu": zones}
		}
		for _, b := range blocks {
			item.Memory = append(item.Memory, block{b.Type, b.Size, b.NUMA})
		}
		sort.Slice(item.Memory, func(i, j int) bool { return item.Memory[i].Type < item.Memory[j].Type })
		e.Alloc = append(e.Alloc, item)
	}
	podCPUs, isPod := cpuFile.PodEntries[e.Pod]
	podMemory, isMem := memFile.PodEntries[e.Pod]
	for _, c := range e.Containers {
		if isPod || isMem {
			add(c.Name, "", nil)
		} else {
			add(c.Name, cpuFile.Entries[e.Pod][c.Name], memFile.Entries[e.Pod][c.Name])
		}
	}
	if isPod || isMem {
		add("", podCPUs.CPUSet, podMemory.Blocks)
	}
}

func main() {
	klog.SetLogger(klog.Logger{})
	_ = utilfeature.DefaultMutableFeatureGate.Set("CPUManagerPolicyAlphaOptions=true")
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<24)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		s := &scenario{}
		check(json.Unmarshal(lines.Bytes(), s))
		s.Node.Kubelet = "@VERSION@"
		run(s)
		check(out.Encode(s))
	}
}
