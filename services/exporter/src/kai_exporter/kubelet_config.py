"""A kubelet's configuration file, as far as admission depends on it.

Source: Kubernetes v1.37, `staging/src/k8s.io/kubelet/config/v1beta1/types.go`. Flags of the kubelet's command line go
before the file and are not seen here.
"""

from pathlib import Path

import msgspec
import yaml
from kaicore.errors import ConfigurationError


class KubeletConfig(msgspec.Struct, frozen=True, rename="camel"):
    """What of a KubeletConfiguration matters here; what it leaves out is as the kubelet has it by default."""

    topology_manager_policy: str = "none"
    topology_manager_scope: str = "container"
    topology_manager_policy_options: dict[str, str] = {}
    cpu_manager_policy_options: dict[str, str] = {}
    feature_gates: dict[str, bool] = {}


def read_kubelet_config(path: Path) -> KubeletConfig:
    """Read a KubeletConfiguration, such as `/var/lib/kubelet/config.yaml`.

    Raises:
        ConfigurationError: it cannot be read, or a field has the wrong type; names file and field.
    """
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
        return msgspec.convert(document, KubeletConfig)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"kubelet configuration {path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"kubelet configuration {path}: is no YAML: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"kubelet configuration {path}: {error}") from error
