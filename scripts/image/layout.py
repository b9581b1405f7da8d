"""An OCI image layout: blobs by their digests, and an index that names what is in it."""

import json
import shutil
from pathlib import Path
from typing import Any

from scripts.image.layers import MEDIA_TYPE, Layer, digest

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
_EMPTY = "application/vnd.oci.empty.v1+json"

Json = dict[str, Any]


class Layout:
    """A layout in a folder, which is made anew.

    Args:
        folder: where it is.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "blobs/sha256").mkdir(parents=True)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        self._named: list[Json] = []

    def blob(self, content: bytes, media_type: str, **more: Any) -> Json:
        """Write a blob, and return what refers to it."""
        name = digest(content)
        (self._folder / "blobs" / name.replace(":", "/")).write_bytes(content)
        return {"mediaType": media_type, "digest": name, "size": len(content), **more}

    def _document(self, document: Json, **more: Any) -> Json:
        text = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
        return self.blob(text, document["mediaType"], **more)

    def image(self, architecture: str, layers: list[Layer], config: Json, created: str) -> Json:
        """Write the image of one architecture.

        Args:
            architecture: as OCI names it.
            layers: from the lowest up.
            config: what a container of it runs as and has around it.
            created: its time, RFC 3339.
        """
        platform = {"architecture": architecture, "os": "linux"}
        if architecture == "arm64":
            platform["variant"] = "v8"
        diff_ids = [layer.diff_id for layer in layers]
        whole = platform | {"config": config, "created": created, "rootfs": {"type": "layers", "diff_ids": diff_ids}}
        blobs = [self.blob(layer.blob, MEDIA_TYPE) for layer in layers]
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": self.blob(json.dumps(whole, sort_keys=True).encode(), CONFIG),
            "layers": blobs,
            "annotations": config["Labels"],
        }
        return self._document(manifest, platform=platform)

    def index(self, images: list[Json], tag: str, annotations: dict[str, str]) -> Json:
        """Write the index over the images of all architectures, by the name `tag`; return what refers to it."""
        document = {"schemaVersion": 2, "mediaType": INDEX, "manifests": images, "annotations": annotations}
        made = self._document(document)
        self._named.append(made | {"annotations": {"org.opencontainers.image.ref.name": tag}})
        return made

    def attach(self, subject: Json, content: bytes, media_type: str, title: str) -> None:
        """Write a document about what is in the layout already, which registries list as its referrer."""
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "artifactType": media_type,
            "config": self.blob(b"{}", _EMPTY),
            "layers": [self.blob(content, media_type, annotations={"org.opencontainers.image.title": title})],
            "subject": {key: subject[key] for key in ("mediaType", "digest", "size")},
        }
        self._named.append(self._document(manifest, artifactType=media_type))

    def finish(self) -> None:
        """Write what names all of it."""
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": self._named}
        (self._folder / "index.json").write_text(json.dumps(index, sort_keys=True, indent=1))
