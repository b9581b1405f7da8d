"""Syntax of names, labels and keys (`apimachinery/pkg/util/validation` of Kubernetes)."""

import re

_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_DNS_LABEL = re.compile(_LABEL)
_DNS_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_QUALIFIED = re.compile(r"(?:[A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_LONGEST_LABEL = 63
_LONGEST_NAME = 253


def is_dns_label(text: str) -> bool:
    """Whether containers and namespaces may be called so (RFC 1123 label)."""
    return len(text) <= _LONGEST_LABEL and _DNS_LABEL.fullmatch(text) is not None


def is_dns_name(text: str) -> bool:
    """Whether objects may be called so (RFC 1123 subdomain)."""
    return len(text) <= _LONGEST_NAME and _DNS_NAME.fullmatch(text) is not None


def is_qualified_name(text: str) -> bool:
    """Whether labels, annotations, taints and resources may be called so: a name, perhaps with a domain before it."""
    domain, slash, name = text.rpartition("/")
    if slash and not is_dns_name(domain):
        return False
    return len(name) <= _LONGEST_LABEL and _QUALIFIED.fullmatch(name) is not None


def is_label_value(text: str) -> bool:
    """Whether labels may say so."""
    return not text or (len(text) <= _LONGEST_LABEL and _QUALIFIED.fullmatch(text) is not None)
