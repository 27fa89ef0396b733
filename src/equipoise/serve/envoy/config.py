"""Envoy's file, written out with a word on every line that must be as it is.

Recipe and traps were found on Envoy 1.40; the tests run this very file against the real thing.
"""

from __future__ import annotations

from equipoise.engines.facts import GENERATING, SESSION_HEADERS
from equipoise.engines.headers import PREFILL_HEADERS, RANK_HEADERS
from equipoise.serve.envoy.held import DESTINATION, PICKER_HEADER
from equipoise.serve.envoy.options import EnvoyOptions, socket_of

__all__ = ["OPEN_ROUTES", "envoy_config"]

OPEN_ROUTES = ("/health", "/v1/models", "/version")
"""GET of these goes to any worker; all other routes but those that generate are answered with 404."""

ENVOY_HEADERS = (
    "x-envoy-expected-rq-timeout-ms",
    "x-envoy-force-trace",
    "x-envoy-hedge-on-per-try-timeout",
    "x-envoy-max-retries",
    "x-envoy-retriable-header-names",
    "x-envoy-retriable-status-codes",
    "x-envoy-retry-grpc-on",
    "x-envoy-retry-on",
    "x-envoy-upstream-alt-stat-name",
    "x-envoy-upstream-rq-per-try-timeout-ms",
    "x-envoy-upstream-rq-timeout-alt-response",
    "x-envoy-upstream-rq-timeout-ms",
    "x-envoy-upstream-stream-duration-ms",
)
"""By which a client Envoy takes for a trusted one could have its request sent again, or cut it."""

USAGE = (
    (("usage", "prompt_tokens"), "prompt_tokens"),
    (("usage", "completion_tokens"), "output_tokens"),
    (("response", "usage", "input_tokens"), "prompt_tokens"),
    (("response", "usage", "output_tokens"), "output_tokens"),
    (("meta_info", "prompt_tokens"), "prompt_tokens"),
    (("meta_info", "completion_tokens"), "output_tokens"),
)
"""Where engines say how many tokens a request had: completions and chat, responses, SGLang's own route."""

_TYPE = "type.googleapis.com/envoy.extensions"


def envoy_config(options: EnvoyOptions) -> str:
    """The YAML of an Envoy that asks our pickers.

    Examples
    --------
    >>> text = envoy_config(EnvoyOptions(workers=["http://10.0.0.1:8000"]))
    >>> "NO_FALLBACK" in text
    True
    """
    return "".join((_HEAD, _admin(options), _listener(options), _clusters(options)))


_HEAD = """\
# Envoy as the data path of Equipoise, written by `equipoise serve envoy-config`: change the options, not the file.
#     envoy -c THIS_FILE
# Envoy carries all bytes. For every request that generates it asks the picker (`equipoise serve --mode ext-proc`) where
# it is to go; the picker holds a lease on the rank until the ext_proc stream of that request ends.
"""


def _admin(options: EnvoyOptions) -> str:
    if not options.admin:
        return ""
    return f"admin: {{address: {socket_of(options.admin, '--admin').yaml()}}}\n"


def _listener(options: EnvoyOptions) -> str:
    removed = {*RANK_HEADERS, *ENVOY_HEADERS, DESTINATION, PICKER_HEADER}
    overrides = ""
    if (
        not options.behind_pd_proxy
    ):  # of a proxy that chose the prefill side, some of x-override-* have to pass
        removed |= PREFILL_HEADERS
        overrides = "\n              - {remove_on_match: {key_matcher: {prefix: x-override-}}}"
    mutations = overrides + "".join(f"\n              - {{remove: {name}}}" for name in sorted(removed))
    routes = "".join(
        f"""
              - match: {{path: {route}, headers: [{{name: ":method", string_match: {{exact: POST}}}}]}}
                route: *generate"""
        for route in GENERATING[1:]
    )
    others = "".join(
        f"""
              - match: {{path: {route}, headers: [{{name: ":method", string_match: {{exact: GET}}}}]}}
                route: {{cluster: any_worker, timeout: 10s}}
                typed_per_filter_config: {"&unasked" if route == OPEN_ROUTES[0] else "*unasked"}"""
        + (
            f"""
                  envoy.filters.http.ext_proc:
                    "@type": {_TYPE}.filters.http.ext_proc.v3.ExtProcPerRoute
                    disabled: true"""
            if route == OPEN_ROUTES[0]
            else ""
        )
        for route in OPEN_ROUTES
    )
    told = (
        ":path",
        ":status",
        "authorization",
        "x-request-id",
        "x-envoy-upstream-service-time",
        *SESSION_HEADERS,
    )
    allowed = ", ".join(f'{{exact: "{name}"}}' for name in (*told, options.class_header))
    return f"""\
static_resources:
  listeners:
  - name: clients
    address: {socket_of(options.listen, "--listen").yaml()}
    per_connection_buffer_limit_bytes: {options.most_body_bytes}  # the largest request body; a longer one is a 413
    listener_filters_timeout: 5s
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {_TYPE}.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          stream_idle_timeout: 0s      # the routes have their own
          request_headers_timeout: 10s # a client that never ends its headers
          delayed_close_timeout: 0s    # else a client learns 1 s late that an engine dropped its answer
          normalize_path: true
          merge_slashes: true
          path_with_escaped_slashes_action: REJECT_REQUEST
          # Some engines take x_dp_rank for x-dp-rank.
          common_http_protocol_options: {{headers_with_underscores_action: DROP_HEADER}}
          # What a client says of ranks, workers, retries is taken off before anything else, also while no picker is up.
          early_header_mutation_extensions:
          - name: envoy.http.early_header_mutation.header_mutation
            typed_config:
              "@type": {_TYPE}.http.early_header_mutation.header_mutation.v3.HeaderMutation
              mutations:{mutations}
{_access_logs(options)}\
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              # Routes that generate: the picker is asked. No retries: another rank needs another header.
              - match: {{path: {GENERATING[0]}, headers: [{{name: ":method", string_match: {{exact: POST}}}}]}}
                route: &generate {{cluster: workers, timeout: 0s, idle_timeout: {options.idle_timeout_s:g}s}}{routes}
              # Routes that occupy no rank: any worker.{others}
              # Everything else an engine can do is not for clients.
              - match: {{prefix: /}}
                direct_response:
                  status: 404
                  body: {{inline_string: '{{"error":{{"message":"no such route","code":"no_route"}}}}'}}
                typed_per_filter_config: *unasked
          http_filters:
          - name: envoy.filters.http.ext_proc
            typed_config:
              "@type": {_TYPE}.filters.http.ext_proc.v3.ExternalProcessor
              grpc_service: {{envoy_grpc: {{cluster_name: picker}}, timeout: 0s}}
              # Without a picker new requests find no endpoint (503, by NO_FALLBACK below), and answers in flight go on.
              # With false a picker's death would cut every one of them.
              failure_mode_allow: true
              # Longer than the picker queues (queue_ttl_s = {options.queue_ttl_s:g}).
              message_timeout: {options.message_timeout_s:g}s
              # The stream of a request ends when the request ends with these modes, and only with these: with a
              # streamed body, or without response trailers, Envoy closes it early, and the lease would be freed while
              # the rank still decodes. Headers of the response tell status and time of the first byte.
              processing_mode:
                request_header_mode: SEND
                request_body_mode: BUFFERED
                request_trailer_mode: SKIP
                response_header_mode: SEND
                response_body_mode: NONE    # no byte of an answer passes Python
                response_trailer_mode: SEND
              forward_rules: {{allowed_headers: {{patterns: [{allowed}]}}}}
{_usage_filters() if options.usage else ""}\
          - name: envoy.filters.http.router
            typed_config: {{"@type": {_TYPE}.filters.http.router.v3.Router}}
"""


def _access_logs(options: EnvoyOptions) -> str:
    if not options.access_log:
        return ""
    many = len(options.pickers) > 1
    logs = "          # How each request ended, to the picker that placed it: the cause, and the size of the answer.\n"
    logs += "          access_log:\n"
    for number in range(1, len(options.pickers) + 1):
        one = f'"{number}/{len(options.pickers)}"'
        chosen = f"""
            filter: {{header_filter: {{header: {{name: {PICKER_HEADER}, string_match: {{exact: {one}}}}}}}}}"""
        logs += f"""\
          - name: envoy.access_loggers.http_grpc{chosen if many else ""}
            typed_config:
              "@type": {_TYPE}.access_loggers.grpc.v3.HttpGrpcAccessLogConfig
              common_config:
                log_name: picker
                transport_api_version: V3
                buffer_flush_interval: 0.005s
                buffer_size_bytes: 0          # at once: a lease waits for its entry
                grpc_service: {{envoy_grpc: {{cluster_name: {f"picker_{number}" if many else "picker"}}}}}
"""
    return logs


def _usage_filters() -> str:
    def rules(indent: str, wrap: bool) -> str:
        text = ""
        for path, key in USAGE:
            selectors = ", ".join(f"{{key: {name}}}" for name in path)
            rule = (
                f"{{selectors: [{selectors}], on_present: "
                f"{{metadata_namespace: equipoise, key: {key}, type: NUMBER}}}}"
            )
            text += f"{indent}- {f'{{rule: {rule}}}' if wrap else rule}\n"
        return text

    pad = " " * 18
    return f"""\
          # Token counts of answers, where the engine says them, into the log entry.
          - name: envoy.filters.http.sse_to_metadata
            typed_config:
              "@type": {_TYPE}.filters.http.sse_to_metadata.v3.SseToMetadata
              response_rules:
                max_event_size: 1048576
                content_parser:
                  name: envoy.content_parsers.json
                  typed_config:
                    "@type": {_TYPE}.content_parsers.json.v3.JsonContentParser
                    rules:
{rules(pad + "  ", True)}\
          - name: envoy.filters.http.json_to_metadata
            typed_config:
              "@type": {_TYPE}.filters.http.json_to_metadata.v3.JsonToMetadata
              response_rules:
                allow_content_types_regex: {{regex: "application/json(;.*)?"}}
                rules:
{rules(pad[:-2], False)}"""


def _clusters(options: EnvoyOptions) -> str:
    workers = "".join(f"\n      - {{endpoint: {{address: {one.yaml()}}}}}" for one in options.endpoints())
    most = options.most_connections
    pickers = [socket_of(text, "--picker") for text in options.pickers]
    text = f"""\
  clusters:
  # The picker names the endpoint; one it did not name, or that is not in this list, is a 503 and never another worker,
  # which would get the rank header of a stranger.
  - name: workers
    connect_timeout: {options.connect_timeout_s:g}s
    circuit_breakers: &many
      thresholds: [{{max_connections: {most}, max_pending_requests: {most}, max_requests: {most}}}]
    load_assignment:
      cluster_name: workers
      endpoints: &workers
      - lb_endpoints:{workers.replace(chr(10) + "      -", chr(10) + "        -")}
    load_balancing_policy:
      policies:
      - typed_extension_config:
          name: envoy.load_balancing_policies.override_host
          typed_config:
            "@type": {_TYPE}.load_balancing_policies.override_host.v3.OverrideHost
            override_host_sources: [{{header: {DESTINATION}}}]
            fallback_policy:
              policies:
              - typed_extension_config:
                  name: envoy.load_balancing_policies.subset
                  typed_config:
                    "@type": {_TYPE}.load_balancing_policies.subset.v3.Subset
                    fallback_policy: NO_FALLBACK
                    subset_lb_policy:
                      policies:
                      - typed_extension_config:
                          name: envoy.load_balancing_policies.round_robin
                          typed_config: {{"@type": {_TYPE}.load_balancing_policies.round_robin.v3.RoundRobin}}
  # For routes that occupy no rank.
  - name: any_worker
    connect_timeout: {options.connect_timeout_s:g}s
    circuit_breakers: *many
    load_assignment: {{cluster_name: any_worker, endpoints: *workers}}
"""
    text += _picker_cluster("picker", [one.yaml() for one in pickers])
    if options.access_log and len(pickers) > 1:
        for number, one in enumerate(pickers, 1):
            text += _picker_cluster(f"picker_{number}", [one.yaml()])
    return text


def _picker_cluster(name: str, addresses: list[str]) -> str:
    endpoints = ", ".join(f"{{endpoint: {{address: {one}}}}}" for one in addresses)
    return f"""\
  - name: {name}
    connect_timeout: 0.25s
    circuit_breakers: *many
    # A picker that does not answer gets nothing for 5 s, if there is another one.
    outlier_detection:
      {{split_external_local_origin_errors: true, consecutive_local_origin_failure: 1, interval: 0.5s,
       base_ejection_time: 5s, max_ejection_time: 5s, max_ejection_percent: 99}}
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": {_TYPE}.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config:
          http2_protocol_options:
            max_concurrent_streams: 100000
            connection_keepalive: {{interval: 10s, timeout: 5s}}
    load_assignment: {{cluster_name: {name}, endpoints: [{{lb_endpoints: [{endpoints}]}}]}}
"""
