"""From resolved settings to a server's configuration."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from headway.cli.serve_options import SERVE_OPTIONS
from headway.cli.settings import namespace, places, resolve
from headway.config import (
    AccessConfig,
    BatchConfig,
    LimitsConfig,
    ListenConfig,
    LogConfig,
    ServeConfig,
    TlsFiles,
    data_folder,
)
from headway.core.types import ServiceClass
from headway.errors import ConfigError


def resolved(flags: argparse.Namespace) -> argparse.Namespace:
    """The settings of `headway serve`, each of the strongest place. Raises ConfigError."""
    return namespace(resolve(SERVE_OPTIONS, places(flags, os.environ)))


def serve_config(settings: argparse.Namespace) -> ServeConfig:
    """A server's manners. Raises ConfigError."""
    return ServeConfig(
        listen=_listen(settings),
        access=AccessConfig(settings.api_key, settings.keys_file),
        limits=_limits(settings),
        served_names=settings.served_model_name or (),
        chat_template=settings.chat_template,
        default_class=ServiceClass[settings.default_class.upper()],
        drain_s=settings.drain_timeout,
        logs=LogConfig(settings.log_level, settings.log_format, bool(settings.log_prompts)),
    )


def batch_config(settings: argparse.Namespace, environment: Mapping[str, str]) -> BatchConfig:
    """Where Batch jobs are kept. Raises ConfigError."""
    quota_bytes: int = settings.data_quota
    if settings.no_batches:
        if settings.data_dir is not None:
            raise ConfigError("--no-batches and --data-dir exclude each other")
        return BatchConfig()
    if settings.data_dir is not None:
        return BatchConfig(Path(settings.data_dir), True, quota_bytes)
    return BatchConfig(data_folder(environment), False, quota_bytes)


def _listen(settings: argparse.Namespace) -> ListenConfig:
    return ListenConfig(
        host=settings.host,
        port=settings.port,
        admin_host=settings.admin_host,
        admin_port=settings.admin_port,
        root_path=settings.root_path or "",
        cors_origins=settings.cors_origin or (),
        allowed_hosts=settings.allowed_host or (),
        tls=_tls(settings.tls_cert, settings.tls_key),
    )


def _tls(certificate: Path | None, key: Path | None) -> TlsFiles | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise ConfigError("--tls-cert and --tls-key go together")
    return TlsFiles(certificate, key)


def _limits(settings: argparse.Namespace) -> LimitsConfig:
    defaults = LimitsConfig()
    return LimitsConfig(
        queue_requests=settings.queue_requests.over(defaults.queue_requests),
        queue_tokens=settings.queue_tokens.over(defaults.queue_tokens),
        timeouts_s=settings.timeout or defaults.timeouts_s,
        max_body_bytes=settings.max_body,
    )
