"""Manifests of pods and gangs as one-liners."""

GANG_EXAMPLES = """
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata:
  name: gang-example1
  annotations: {gang.scheduling.koordinator.sh/groups: '["default/gang-example1", "default/gang-example2"]'}
spec: {minMember: 1}
---
apiVersion: scheduling.sigs.k8s.io/v1alpha1
kind: PodGroup
metadata:
  name: gang-example2
  annotations: {gang.scheduling.koordinator.sh/groups: '["default/gang-example1", "default/gang-example2"]'}
spec: {minMember: 2}
"""


def pod(name: str, *, spec: str = "", owner: str = "", created: str = "", **words: str) -> str:
    """A pod; words are labels if they have a slash or a dot in front of it, as written in `labels`/`annotations`."""
    labels, annotations = words.get("labels", ""), words.get("annotations", "")
    references = ""
    if owner:
        api_version, kind, of = owner.rsplit("/", 2)
        reference = f"{{apiVersion: {api_version}, kind: {kind}, name: {of}, uid: uid-{of}, controller: true}}"
        references = f", ownerReferences: [{reference}]"
    at = f", creationTimestamp: {created!r}" if created else ""
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{{labels}}}, annotations: {{{annotations}}}"
        f"{references}{at}}}\nspec: {{{spec}}}\n"
    )
