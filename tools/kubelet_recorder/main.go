// Records what the managers of one kubelet version decide: CPU, memory, device and Topology Manager, linked as they are.
// Scenarios come by standard input, one JSON object a line, and go out with the decisions, in the format of
// tests/fidelity/format.py. One source serves all versions: what a version's functions want besides (a logger, a
// context, the operation), call fills in. It writes below /var/lib/kubelet, so it wants a mount namespace of its own.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"
)

const (
	devicePlugins = "/var/lib/kubelet/device-plugins/"
	// What lifecycle.AddOperation and lifecycle.ResizeOperation are, in versions that have them (1.35 on).
	operationAdd    = "add"
	operationResize = "resize"
)

// operation is what the managers are asked for.
var operation = operationAdd

var (
	contextType = reflect.TypeOf((*context.Context)(nil)).Elem()
	loggerType  = reflect.TypeOf(klog.Logger{})
)

// call calls a function of the kubelet with the arguments that every version's has; a logger, a context and an
// operation are filled in where this version's wants them.
func call(function any, arguments ...any) []reflect.Value {
	value := reflect.ValueOf(function)
	in := []reflect.Value{}
	for place := 0; place < value.Type().NumIn(); place++ {
		want := value.Type().In(place)
		switch {
		case want == loggerType:
			in = append(in, reflect.ValueOf(klog.Background()))
		case want == contextType:
			in = append(in, reflect.ValueOf(context.Background()))
		case want.Name() == "Operation":
			in = append(in, reflect.ValueOf(operation).Convert(want))
		case arguments[0] == nil:
			in = append(in, reflect.Zero(want))
			arguments = arguments[1:]
		default:
			given := reflect.ValueOf(arguments[0])
			if !given.Type().AssignableTo(want) && given.Type().ConvertibleTo(want) {
				// sets.String of versions before 1.29 is sets.Set[string] by another name.
				given = given.Convert(want)
			}
			in = append(in, given)
			arguments = arguments[1:]
		}
	}
	return value.Call(in)
}

// made is the result of a constructor that may fail.
func made[T any](out []reflect.Value) (T, error) {
	if err, failed := out[1].Interface().(error); failed {
		return *new(T), err
	}
	return out[0].Interface().(T), nil
}

// failure is the error that a function returns alone.
func failure(out []reflect.Value) error {
	err, _ := out[0].Interface().(error)
	return err
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

type amounts map[string]int64

type container struct {
	Name string  `json:"name"`
	Kind string  `json:"kind"`
	Req  amounts `json:"req,omitempty"`
	Lim  amounts `json:"lim,omitempty"`
}

type block struct {
	Type string `json:"type"`
	Size uint64 `json:"size"`
	Numa []int  `json:"numa"`
}

type allocation struct {
	Name     string             `json:"name"`
	Affinity []int              `json:"affinity"`
	CPUs     string             `json:"cpu_ids,omitempty"`
	Amounts  map[string][]int64 `json:"amounts,omitempty"`
	Memory   []block            `json:"memory,omitempty"`
	Devices  map[string]string  `json:"devices,omitempty"`
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

type device struct {
	ID   string  `json:"id"`
	Numa []int64 `json:"numa"`
}

type node struct {
	Gates           map[string]bool     `json:"feature_gates,omitempty"`
	Zones           int                 `json:"zones"`
	Sockets         int                 `json:"sockets"`
	Threads         int                 `json:"threads_per_core"`
	ReservedCPUs    string              `json:"reserved_cpu_ids"`
	ReservedMemory  []int64             `json:"reserved_memory"`
	Policy          string              `json:"topology_policy"`
	Scope           string              `json:"topology_scope"`
	TopologyOptions map[string]string   `json:"topology_policy_options,omitempty"`
	CPUOptions      map[string]string   `json:"cpu_manager_options,omitempty"`
	Distances       [][]uint64          `json:"distances,omitempty"`
	Capacity        map[string][]int64  `json:"capacity"`
	Allocatable     map[string][]int64  `json:"allocatable"`
	NodeAllocatable amounts             `json:"node_allocatable"`
	Devices         map[string][]device `json:"devices,omitempty"`
}

type scenario struct {
	ID          string             `json:"id"`
	Tags        []string           `json:"tags"`
	Node        node               `json:"node"`
	Available   map[string][]int64 `json:"initial_available"`
	Events      []*event           `json:"events"`
	Unsupported string             `json:"unsupported,omitempty"`
}

type ready struct{}

func (ready) AddSource(string)                            {}
func (ready) AllReady() bool                              { return true }
func (ready) GetPodStatus(types.UID) (v1.PodStatus, bool) { return v1.PodStatus{}, false }
func (ready) UpdateContainerResources(context.Context, string, *runtimeapi.ContainerResources) error {
	return nil
}

// plugin is a device plugin that prefers the lowest ids, so that what is taken does not depend on a map's order.
type plugin struct {
	pluginapi.DevicePluginClient
	resource string
}

func (p plugin) API() pluginapi.DevicePluginClient { return p }
func (p plugin) Resource() string                  { return p.resource }
func (p plugin) SocketPath() string                { return "/" + p.resource }

func (plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty, ...grpc.CallOption) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (plugin) GetPreferredAllocation(_ context.Context, asked *pluginapi.PreferredAllocationRequest, _ ...grpc.CallOption) (*pluginapi.PreferredAllocationResponse, error) {
	answer := &pluginapi.PreferredAllocationResponse{}
	for _, one := range asked.ContainerRequests {
		ids := append([]string{}, one.MustIncludeDeviceIDs...)
		free := sets.New(one.AvailableDeviceIDs...).Delete(ids...)
		sorted := sets.List(free)
		ids = append(ids, sorted[:min(len(sorted), int(one.AllocationSize)-len(ids))]...)
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return answer, nil
}

func (plugin) Allocate(_ context.Context, asked *pluginapi.AllocateRequest, _ ...grpc.CallOption) (*pluginapi.AllocateResponse, error) {
	answer := &pluginapi.AllocateResponse{}
	for range asked.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &pluginapi.ContainerAllocateResponse{})
	}
	return answer, nil
}

// machine fills a version's own MachineInfo: CPUs are numbered zone by zone, siblings being neighbours.
func machine(n node, into reflect.Type) reflect.Value {
	zones, id, core := []map[string]any{}, 0, 0
	for zone := 0; zone < n.Zones; zone++ {
		cores := []map[string]any{}
		for left := n.Capacity["cpu"][zone] / 1000; left > 0; left -= int64(n.Threads) {
			threads := []int{}
			for range n.Threads {
				threads = append(threads, id)
				id++
			}
			cores = append(cores, map[string]any{"core_id": core, "thread_ids": threads, "socket_id": zone * n.Sockets / n.Zones})
			core++
		}
		one := map[string]any{"node_id": zone, "memory": n.Capacity["memory"][zone], "cores": cores}
		if n.Distances != nil {
			one["distances"] = n.Distances[zone]
		}
		zones = append(zones, one)
	}
	text, err := json.Marshal(map[string]any{
		"num_cores": id, "num_physical_cores": core, "num_sockets": n.Sockets, "topology": zones,
	})
	check(err)
	info := reflect.New(into)
	check(json.Unmarshal(text, info.Interface()))
	return info
}

func list(a amounts) map[string]string {
	out := map[string]string{}
	for name, amount := range a {
		out[name] = strconv.FormatInt(amount, 10)
		if name == "cpu" {
			out[name] += "m"
		}
	}
	return out
}

// makePod makes a pod by way of JSON: not every version knows all fields.
func makePod(e *event) *v1.Pod {
	inits, apps := []any{}, []any{}
	for _, c := range e.Containers {
		lim := c.Lim
		if lim == nil {
			lim = c.Req
		}
		one := map[string]any{"name": c.Name, "resources": map[string]any{"requests": list(c.Req), "limits": list(lim)}}
		switch c.Kind {
		case "app":
			apps = append(apps, one)
		case "sidecar":
			one["restartPolicy"] = "Always"
			fallthrough
		default:
			inits = append(inits, one)
		}
	}
	spec := map[string]any{"initContainers": inits, "containers": apps}
	if e.PodReq != nil {
		spec["resources"] = map[string]any{"requests": list(e.PodReq), "limits": list(e.PodReq)}
	}
	text, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"name": e.Pod, "namespace": "default", "uid": e.Pod},
		"spec":     spec,
		"status":   map[string]any{"qosClass": e.Qos, "phase": "Pending"},
	})
	check(err)
	pod := &v1.Pod{}
	check(json.Unmarshal(text, pod))
	return pod
}

// kubelet holds the managers of one node.
type kubelet struct {
	scenario *scenario
	dir      string
	topology topologymanager.Manager
	cpus     cpumanager.Manager
	memory   memorymanager.Manager
	devices  *devicemanager.ManagerImpl
	zoneOf   map[int]int
	active   map[string]*v1.Pod
}

func start(s *scenario, dir string, active map[string]*v1.Pod) (*kubelet, error) {
	n := s.Node
	info := machine(n, reflect.TypeOf(cpumanager.NewManager).In(machinePlace()).Elem())
	zones := info.Elem().FieldByName("Topology").Interface()
	k := &kubelet{scenario: s, dir: dir, zoneOf: map[int]int{}, active: active}
	perZone := 0
	for zone := 0; zone < n.Zones; zone++ {
		for range n.Capacity["cpu"][zone] / 1000 {
			k.zoneOf[perZone] = zone
			perZone++
		}
	}
	var err error
	if k.topology, err = made[topologymanager.Manager](call(topologymanager.NewManager, zones, n.Policy, n.Scope, n.TopologyOptions)); err != nil {
		return nil, err
	}
	reserved, err := cpuset.Parse(n.ReservedCPUs)
	check(err)
	limits, total := []kubeletconfig.MemoryReservation{}, int64(0)
	for zone, amount := range n.ReservedMemory {
		if amount > 0 {
			quantity := *resource.NewQuantity(amount, resource.BinarySI)
			limits = append(limits, kubeletconfig.MemoryReservation{NumaNode: int32(zone), Limits: v1.ResourceList{v1.ResourceMemory: quantity}})
			total += amount
		}
	}
	reservation := v1.ResourceList{
		v1.ResourceCPU:    *resource.NewQuantity(int64(reserved.Size()), resource.DecimalSI),
		v1.ResourceMemory: *resource.NewQuantity(total, resource.BinarySI),
	}
	k.cpus, err = made[cpumanager.Manager](call(cpumanager.NewManager, "static", n.CPUOptions, 24*time.Hour, info.Interface(), reserved, reservation, dir, k.topology))
	if err != nil {
		return nil, err
	}
	k.memory, err = made[memorymanager.Manager](call(memorymanager.NewManager, "Static", info.Interface(), reservation, limits, dir, k.topology))
	if err != nil {
		return nil, err
	}
	if k.devices, err = made[*devicemanager.ManagerImpl](call(devicemanager.NewManagerImpl, zones, k.topology)); err != nil {
		return nil, err
	}
	pods := func() []*v1.Pod {
		out := []*v1.Pod{}
		for _, pod := range k.active {
			out = append(out, pod)
		}
		return out
	}
	check(failure(call(k.cpus.Start, cpumanager.ActivePodsFunc(pods), ready{}, ready{}, ready{}, containermap.NewContainerMap())))
	check(failure(call(k.memory.Start, memorymanager.ActivePodsFunc(pods), ready{}, ready{}, ready{}, containermap.NewContainerMap())))
	check(failure(call(k.devices.Start, devicemanager.ActivePodsFunc(pods), ready{}, containermap.NewContainerMap(), sets.New[string]())))
	k.plugIn()
	for _, provider := range []topologymanager.HintProvider{k.devices, k.cpus, k.memory} {
		call(k.topology.AddHintProvider, provider)
	}
	return k, nil
}

// machinePlace is where NewManager of the CPU Manager takes the machine.
func machinePlace() int {
	kind := reflect.TypeOf(cpumanager.NewManager)
	for place := 0; place < kind.NumIn(); place++ {
		if kind.In(place).Kind() == reflect.Pointer && kind.In(place).Elem().Name() == "MachineInfo" {
			return place
		}
	}
	panic("cpumanager.NewManager takes no MachineInfo")
}

func (k *kubelet) plugIn() {
	for resource, devices := range k.scenario.Node.Devices {
		check(failure(call(k.devices.PluginConnected, resource, plugin{resource: resource})))
		answer := &pluginapi.ListAndWatchResponse{}
		for _, one := range devices {
			there := &pluginapi.Device{ID: one.ID, Health: pluginapi.Healthy}
			if len(one.Numa) > 0 {
				there.Topology = &pluginapi.TopologyInfo{}
			}
			for _, zone := range one.Numa {
				there.Topology.Nodes = append(there.Topology.Nodes, &pluginapi.NUMANode{ID: zone})
			}
			answer.Devices = append(answer.Devices, there)
		}
		call(k.devices.PluginListAndWatchReceiver, resource, answer)
	}
}

func (k *kubelet) run() {
	held := map[string]amounts{}
	for _, e := range k.scenario.Events {
		switch e.Op {
		case "remove":
			delete(k.active, e.Pod)
			delete(held, e.Pod)
		case "resize":
			k.resize(e)
		case "restart":
			k.restart(e)
		case "start":
			k.startContainers(k.active[e.Pod], true)
		default:
			k.admit(e, held)
		}
	}
}

func (k *kubelet) admit(e *event, held map[string]amounts) {
	pod := makePod(e)
	e.NodeFit = fits(k.scenario, held, whole(e))
	k.free()
	before := k.reserved()
	k.active[e.Pod] = pod
	if !k.ask(e, pod) {
		delete(k.active, e.Pod)
		return
	}
	held[e.Pod] = whole(e)
	k.record(e, pod, before)
	if len(pod.Spec.InitContainers) == 0 {
		k.startContainers(pod, false)
	}
}

// ask asks the Topology Manager whether it takes a pod.
func (k *kubelet) ask(e *event, pod *v1.Pod) bool {
	attributes := &lifecycle.PodAdmitAttributes{Pod: pod}
	if field := reflect.ValueOf(attributes).Elem().FieldByName("Operation"); field.IsValid() {
		field.SetString(operation)
	}
	result := call(k.topology.Admit, attributes)[0].Interface().(lifecycle.PodAdmitResult)
	e.Admit = result.Admit
	if !result.Admit {
		e.Reason, e.Message = result.Reason, result.Message
	}
	return result.Admit
}

// resize asks for a running pod with other amounts, as canResizePod and its successors do: the spec has what is
// wanted, the status what is set aside so far.
func (k *kubelet) resize(e *event) {
	pod, before := makePod(e), k.reserved()
	setAside(pod, k.active[e.Pod])
	operation = operationResize
	taken := k.ask(e, pod)
	operation = operationAdd
	if taken {
		k.active[e.Pod] = pod
	}
	k.record(e, pod, before)
}

// restart makes the managers anew from their state files, and admits a pod again with what is set aside for it.
// Managers that have started without it would forget it.
func (k *kubelet) restart(e *event) {
	pod := k.active[e.Pod].DeepCopy()
	setAside(pod, pod)
	again, err := start(k.scenario, k.dir, map[string]*v1.Pod{e.Pod: pod})
	check(err)
	*k = *again
	before := k.reserved()
	for _, one := range pod.Spec.Containers {
		e.Containers = append(e.Containers, container{Name: one.Name, Kind: "app", Req: amounts{
			"cpu": one.Resources.Requests.Cpu().MilliValue(), "memory": one.Resources.Requests.Memory().Value(),
		}})
	}
	k.ask(e, pod)
	k.record(e, pod, before)
}

// setAside has a pod's status tell what another, the same one before, asks for.
func setAside(pod, before *v1.Pod) {
	pod.Status.Phase = v1.PodRunning
	pod.Status.ContainerStatuses = nil
	for _, one := range before.Spec.Containers {
		status := v1.ContainerStatus{Name: one.Name}
		// 1.26 has no such field, and is not asked for resizes.
		if allocated := reflect.ValueOf(&status).Elem().FieldByName("AllocatedResources"); allocated.IsValid() {
			allocated.Set(reflect.ValueOf(one.Resources.Requests.DeepCopy()))
		}
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
	}
}

// free has the managers forget pods that are gone, as they do at the head of an admission.
func (k *kubelet) free() {
	probe := makePod(&event{Pod: "probe", Qos: "Guaranteed", Containers: []container{{Name: "c", Kind: "app", Req: amounts{"cpu": 1000, "memory": 1}}}})
	for _, provider := range []topologymanager.HintProvider{k.devices, k.cpus, k.memory} {
		call(provider.GetTopologyHints, probe, &probe.Spec.Containers[0])
	}
}

func (k *kubelet) startContainers(pod *v1.Pod, inits bool) {
	if pod == nil {
		return
	}
	every := pod.Spec.Containers
	if inits {
		every = append(append([]v1.Container{}, pod.Spec.InitContainers...), every...)
	}
	for place := range every {
		id := pod.Name + "/" + every[place].Name
		call(k.cpus.AddContainer, pod, &every[place], id)
		call(k.memory.AddContainer, pod, &every[place], id)
	}
}

// reserved is the memory of each zone that pods hold, by type.
func (k *kubelet) reserved() map[string][]int64 {
	out := map[string][]int64{}
	for zone, one := range k.memory.State().GetMachineState() {
		for name, table := range one.MemoryMap {
			if out[string(name)] == nil {
				out[string(name)] = make([]int64, k.scenario.Node.Zones)
			}
			out[string(name)][zone] = int64(table.Reserved)
		}
	}
	return out
}

func (k *kubelet) record(e *event, pod *v1.Pod, before map[string][]int64) {
	zones := k.scenario.Node.Zones
	e.Placement = map[string][]int64{}
	for name, after := range k.reserved() {
		for zone := range after {
			after[zone] -= before[name][zone]
		}
		e.Placement[name] = after
	}
	for _, c := range e.Containers {
		item := allocation{Name: c.Name, Amounts: map[string][]int64{}, Devices: map[string]string{}}
		hint := call(k.topology.GetAffinity, e.Pod, c.Name)[0].Interface().(topologymanager.TopologyHint)
		if hint.NUMANodeAffinity != nil {
			item.Affinity = hint.NUMANodeAffinity.GetBits()
		}
		k.addCPUs(&item, e, k.cpus.GetExclusiveCPUs(e.Pod, c.Name))
		item.Memory = blocks(call(k.memory.GetMemory, e.Pod, c.Name)[0].Interface().([]state.Block))
		for resource, devices := range k.devices.GetDevices(e.Pod, c.Name) {
			ids := []string{}
			for id := range devices {
				ids = append(ids, id)
			}
			sort.Strings(ids)
			item.Devices[resource] = strings.Join(ids, ",")
			item.Amounts[resource] = make([]int64, zones)
			for _, one := range k.scenario.Node.Devices[resource] {
				for _, zone := range one.Numa {
					if sets.New(ids...).Has(one.ID) {
						item.Amounts[resource][zone]++
					}
				}
			}
		}
		e.Alloc = append(e.Alloc, item)
	}
	k.recordPod(e)
}

// recordPod adds what is the pod's as a whole: what PodLevelResourceManagers gives to pods with resources of their own.
func (k *kubelet) recordPod(e *event) {
	item := allocation{Amounts: map[string][]int64{}}
	if cpus, can := k.cpus.(interface{ GetPodCPUs(string) cpuset.CPUSet }); can {
		k.addCPUs(&item, e, cpus.GetPodCPUs(e.Pod))
	} else if cpus, can := any(k.cpus.State()).(interface {
		GetPodCPUSet(string) (cpuset.CPUSet, bool)
	}); can {
		// 1.36 keeps it, and shows it of containers only.
		of, _ := cpus.GetPodCPUSet(e.Pod)
		k.addCPUs(&item, e, of)
	}
	if memory, can := k.memory.(interface{ GetPodMemory(string) []state.Block }); can {
		item.Memory = blocks(memory.GetPodMemory(e.Pod))
	} else if memory, can := any(k.memory.State()).(interface{ GetPodMemoryBlocks(string) []state.Block }); can {
		item.Memory = blocks(memory.GetPodMemoryBlocks(e.Pod))
	}
	if len(item.Amounts)+len(item.Memory) > 0 {
		e.Alloc = append(e.Alloc, item)
	}
}

func (k *kubelet) addCPUs(item *allocation, e *event, cpus cpuset.CPUSet) {
	if cpus.IsEmpty() {
		return
	}
	item.CPUs = cpus.String()
	item.Amounts["cpu"] = make([]int64, k.scenario.Node.Zones)
	for _, cpu := range numbers(cpus) {
		item.Amounts["cpu"][k.zoneOf[cpu]] += 1000
	}
}

// numbers are the CPUs of a set; 1.26 calls it otherwise.
func numbers(cpus any) []int {
	if listed, can := cpus.(interface{ List() []int }); can {
		return listed.List()
	}
	return cpus.(interface{ ToSlice() []int }).ToSlice()
}

func blocks(from []state.Block) []block {
	out := []block{}
	for _, one := range from {
		out = append(out, block{string(one.Type), one.Size, one.NUMAAffinity})
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Type < out[j].Type })
	return out
}

// whole is what a pod asks for in all, as schedulers count it; sidecars run from the start.
func whole(e *event) amounts {
	sum, sidecars, most := amounts{}, amounts{}, amounts{}
	for _, c := range e.Containers {
		for name, amount := range c.Req {
			switch c.Kind {
			case "init":
				most[name] = max(most[name], sidecars[name]+amount)
			case "sidecar":
				sidecars[name] += amount
			}
			if c.Kind != "init" {
				sum[name] += amount
			}
		}
	}
	for name, amount := range most {
		sum[name] = max(sum[name], amount)
	}
	for name, amount := range e.PodReq {
		sum[name] = amount
	}
	return sum
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
		if asked[name] > 0 && amount > s.Node.NodeAllocatable[name] {
			return false
		}
	}
	return true
}

func record(s *scenario) {
	for name, on := range s.Node.Gates {
		if err := utilfeature.DefaultMutableFeatureGate.Set(fmt.Sprintf("%s=%v", name, on)); err != nil {
			s.Unsupported = err.Error()
			return
		}
	}
	check(os.RemoveAll(devicePlugins))
	check(os.MkdirAll(devicePlugins, 0o700))
	dir, err := os.MkdirTemp("", "kubelet")
	check(err)
	defer os.RemoveAll(dir)
	k, err := start(s, dir, map[string]*v1.Pod{})
	if err != nil {
		s.Unsupported = err.Error()
		return
	}
	k.run()
}

// main records one scenario a process: gates are the process's, and a device manager stops only with it.
func main() {
	klog.LogToStderr(false)
	klog.SetOutput(devNull{})
	check(utilfeature.DefaultMutableFeatureGate.Set("CPUManagerPolicyAlphaOptions=true"))
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<24)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		s := &scenario{}
		check(json.Unmarshal(lines.Bytes(), s))
		record(s)
		check(out.Encode(s))
	}
}

type devNull struct{}

func (devNull) Write(text []byte) (int, error) { return len(text), nil }
