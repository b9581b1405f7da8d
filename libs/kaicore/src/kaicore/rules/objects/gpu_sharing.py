"""Names under which shares of GPUs are carried out: KAI-Scheduler's, which programs of the devices' side read."""

#: The extended resource of whole GPUs.
GPU = "nvidia.com/gpu"
#: On a reservation pod, and on a pod with a part of one GPU: the GPU group, which is an opened GPU.
GPU_GROUP_LABEL = "runai-gpu-group"
#: On a pod with parts of several GPUs: what its labels begin with, one for each group, which is the rest and the value.
GPU_GROUP_LABEL_PREFIX = f"{GPU_GROUP_LABEL}/"
#: On a reservation pod, written by its own program: the GPU that the kubelet gave it, by its UUID or index.
GPU_INDEX_ANNOTATION = "run.ai/reserve_for_gpu_index"
#: Where reservation pods are, unless a setting says otherwise.
RESERVATION_NAMESPACE = "kai-resource-reservation"
#: The variable that names a container's GPUs.
VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
#: The program of reservation pods.
RESERVATION_COMMAND = "kai-gpu-reservation"
