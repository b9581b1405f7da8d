package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
)

// Bind is a version of a pod in which its node is another than before.
type Bind struct {
	ResourceVersion int64
	Node            string
}

// ApiPod is a pod as the API server had it, from its creation to its end.
type ApiPod struct {
	UID, Namespace, Name, Scheduler, Phase, Node string
	Binds                                        []Bind
	Deleted                                      bool
	Reserves                                     bool   // it holds a GPU for pods that share it
	Group                                        string // which one
}

func (p *ApiPod) String() string { return p.Namespace + "/" + p.Name }

// Journal is what the API server wrote down before it answered.
type Journal struct {
	Pods  map[string]*ApiPod // by uid
	Nodes map[string]bool    // those that there are
	Lines int
	Torn  []string // what cannot be read
}

type object struct {
	Metadata struct {
		UID       string            `json:"uid"`
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		NodeName      string `json:"nodeName"`
		SchedulerName string `json:"schedulerName"`
	} `json:"spec"`
	Status struct {
		Phase string `json:"phase"`
	} `json:"status"`
}

// readJournal reads a directory of the simulated API server: `snapshot-<rv>`, `journal-<rv>`, each line
// `crc32 rv storage key body`, where the body is `-` for a deletion.
func readJournal(directory string) (*Journal, error) {
	journal := &Journal{Pods: map[string]*ApiPod{}, Nodes: map[string]bool{}}
	paths, err := filepath.Glob(filepath.Join(directory, "journal-*"))
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		return nil, fmt.Errorf("%s: no journal", directory)
	}
	sort.Strings(paths)
	start := filepath.Join(directory, "snapshot-"+filepath.Base(paths[0])[len("journal-"):])
	if _, err := os.Stat(start); err == nil {
		paths = append([]string{start}, paths...)
	}
	keys, last := map[string]string{}, int64(0)
	for index, path := range paths {
		if err := journal.read(path, index == len(paths)-1, keys, &last); err != nil {
			return nil, err
		}
	}
	return journal, nil
}

func (j *Journal) read(path string, newest bool, keys map[string]string, last *int64) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	reader := bufio.NewReaderSize(file, 1<<20)
	snapshot := filepath.Base(path)[0] == 's'
	for number := 1; ; number++ {
		line, err := reader.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			if len(line) > 0 && !newest {
				j.Torn = append(j.Torn, fmt.Sprintf("%s: line %d is torn, and is not the last", path, number))
			}
			return nil
		}
		if err != nil {
			return err
		}
		j.Lines++
		line = bytes.TrimSuffix(line, []byte("\n"))
		fields := bytes.SplitN(line, []byte(" "), 5)
		if len(fields) < 5 || fmt.Sprintf("%08x", crc32.ChecksumIEEE(line[9:])) != string(fields[0]) {
			j.Torn = append(j.Torn, fmt.Sprintf("%s: line %d is damaged", path, number))
			continue
		}
		rv, err := strconv.ParseInt(string(fields[1]), 10, 64)
		if err != nil {
			j.Torn = append(j.Torn, fmt.Sprintf("%s: line %d has no version", path, number))
			continue
		}
		if !snapshot {
			if rv <= *last {
				j.Torn = append(j.Torn, fmt.Sprintf("%s: line %d: version %d after %d", path, number, rv, *last))
			}
			*last = rv
		}
		storage, key := string(fields[2]), string(fields[3])
		switch storage {
		case "pods":
			j.pod(rv, key, fields[4], keys)
		case "nodes":
			j.Nodes[key] = string(fields[4]) != "-"
		}
	}
}

func (j *Journal) pod(rv int64, key string, body []byte, keys map[string]string) {
	if string(body) == "-" {
		if pod := j.Pods[keys[key]]; pod != nil {
			pod.Deleted = true
		}
		return
	}
	var o object
	if err := json.Unmarshal(body, &o); err != nil {
		j.Torn = append(j.Torn, fmt.Sprintf("pod %s at version %d: %s", key, rv, err))
		return
	}
	keys[key] = o.Metadata.UID
	pod := j.Pods[o.Metadata.UID]
	if pod == nil {
		pod = &ApiPod{UID: o.Metadata.UID, Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
		j.Pods[pod.UID] = pod
	}
	pod.Group = o.Metadata.Labels[groupLabel]
	pod.Reserves = pod.Group != "" && o.Metadata.Labels["app.kubernetes.io/managed-by"] == "kai-ledger"
	pod.Scheduler, pod.Phase = o.Spec.SchedulerName, o.Status.Phase
	if o.Spec.NodeName != pod.Node {
		pod.Node = o.Spec.NodeName
		pod.Binds = append(pod.Binds, Bind{rv, pod.Node})
	}
}
