// The allocator of Kubernetes itself, as an oracle: it reads one case per line (slices, classes, claims and what is
// allocated already, as Kubernetes writes them) and answers per node what the claims get there, or why nothing.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"
)

// question is one case.
type question struct {
	Nodes   []*v1.Node                   `json:"nodes"`
	Slices  []*resourceapi.ResourceSlice `json:"slices"`
	Classes []*resourceapi.DeviceClass   `json:"classes"`
	// Allocated claims hold their devices; Claims are to be allocated together.
	Allocated []*resourceapi.ResourceClaim `json:"allocated"`
	Claims    []*resourceapi.ResourceClaim `json:"claims"`
}

// answer is what the claims get on one node.
type answer struct {
	Node        string                         `json:"node"`
	Allocations []resourceapi.AllocationResult `json:"allocations,omitempty"`
	Error       string                         `json:"error,omitempty"`
}

type classes map[string]*resourceapi.DeviceClass

func (c classes) List() ([]*resourceapi.DeviceClass, error) { return nil, nil }

func (c classes) Get(name string) (*resourceapi.DeviceClass, error) {
	if class, found := c[name]; found {
		return class, nil
	}
	return nil, fmt.Errorf("device class %s does not exist", name)
}

func id(result *resourceapi.DeviceRequestAllocationResult) structured.DeviceID {
	return structured.MakeDeviceID(result.Driver, result.Pool, result.Device)
}

func allocatedState(claims []*resourceapi.ResourceClaim) structured.AllocatedState {
	state := structured.AllocatedState{
		AllocatedDevices:         sets.New[structured.DeviceID](),
		AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity:       structured.NewConsumedCapacityCollection(),
	}
	for _, claim := range claims {
		if claim.Status.Allocation == nil {
			continue
		}
		for i := range claim.Status.Allocation.Devices.Results {
			result := &claim.Status.Allocation.Devices.Results[i]
			if result.AdminAccess != nil && *result.AdminAccess {
				continue
			}
			if result.ShareID == nil {
				state.AllocatedDevices.Insert(id(result))
				continue
			}
			share := types.UID(*result.ShareID)
			state.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id(result), &share))
			if result.ConsumedCapacity != nil {
				state.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id(result), result.ConsumedCapacity))
			}
		}
	}
	return state
}

func answers(ctx context.Context, asked *question, cache *cel.Cache) ([]answer, error) {
	lister := classes{}
	for _, class := range asked.Classes {
		lister[class.Name] = class
	}
	features := structured.Features{
		AdminAccess:            true,
		PrioritizedList:        true,
		PartitionableDevices:   true,
		DeviceTaints:           true,
		DeviceBindingAndStatus: true,
		ConsumableCapacity:     true,
		ListTypeAttributes:     true,
	}
	allocator, err := structured.NewAllocator(ctx, features, allocatedState(asked.Allocated), lister, asked.Slices, cache)
	if err != nil {
		return nil, err
	}
	given := make([]answer, 0, len(asked.Nodes))
	for _, node := range asked.Nodes {
		one := answer{Node: node.Name}
		result, err := allocator.Allocate(ctx, node, asked.Claims)
		if err != nil {
			one.Error = err.Error()
		}
		one.Allocations = result
		given = append(given, one)
	}
	return given, nil
}

func main() {
	ctx := context.Background()
	cache := cel.NewCache(256, cel.Features{EnableConsumableCapacity: true, EnableListTypeAttributes: true})
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := json.NewEncoder(os.Stdout)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) == 0 {
			return
		}
		var asked question
		if problem := json.Unmarshal(line, &asked); problem != nil {
			fmt.Fprintln(os.Stderr, problem)
			os.Exit(1)
		}
		given, problem := answers(ctx, &asked, cache)
		if problem != nil {
			fmt.Fprintln(os.Stderr, problem)
			os.Exit(1)
		}
		if problem := out.Encode(given); problem != nil {
			fmt.Fprintln(os.Stderr, problem)
			os.Exit(1)
		}
		if err != nil {
			return
		}
	}
}
