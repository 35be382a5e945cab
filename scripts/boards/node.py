"""What is wrong with a node, its GPUs and ports, and what it has cost."""

from boards.grafana import GREEN, RED, YELLOW, Json, dashboard, series, stat, table, variable
from boards.words import NONE_GOOD, ON_NODE, p95


def node() -> Json:
    def gpu(name: str) -> str:
        return f"{name} {ON_NODE}"

    rate = "[$__rate_interval]"
    return dashboard(
        "node",
        "One node: what is wrong with it, its GPUs and ports, and what it has cost. Its agent measures.",
        [
            stat(
                "Out of service for",
                'time() - max by (cluster) (sentinel_quarantine_since_timestamp_seconds{node="$node",state="active",'
                'mode="enforce",kind!="silence"})',
                "By Sentinel; why stands below.",
                unit="s",
                steps=((None, RED),),
                empty="it is in service",
            ),
            stat(
                "Agent",
                'max by (cluster) (sentinel_agent_info{node="$node"})',
                "1: its agent is scraped.",
                steps=((None, RED), (1, GREEN)),
            ),
            stat(
                "Agent has a controller",
                f"max by (cluster) (sentinel_controller_connected {ON_NODE})",
                "0: what it finds is not acted on.",
                steps=((None, RED), (1, GREEN)),
            ),
            stat(
                "Findings",
                f'sum by (cluster) (sentinel_findings{{severity!="info"}} {ON_NODE})',
                "That stand now, worse than a note.",
                steps=NONE_GOOD,
            ),
            stat(
                "Hottest GPU",
                f"max by (cluster) ({gpu('DCGM_FI_DEV_GPU_TEMP')})",
                "Red: where data-centre GPUs slow down.",
                unit="celsius",
                steps=((None, GREEN), (80, YELLOW), (87, RED)),
                empty="no GPU is seen there",
            ),
            stat(
                "GPU time lost to it",
                'max by (cluster) (sentinel_kept_node_lost_gpu_seconds{node="$node"})',
                "By jobs that it is to blame for, in all kept records.",
                unit="s",
                empty="no job lost time to it",
            ),
            table(
                "What is wrong with it",
                f"max by (cluster, component, entity, code, severity, action) (sentinel_finding {ON_NODE})",
                "With NVIDIA's action, or Sentinel's.",
                value="stands",
                empty="nothing is wrong with it",
            ),
            series(
                "Why it was out of service",
                [
                    (
                        'time() - sentinel_quarantine_since_timestamp_seconds{node="$node"}',
                        "{{kind}} {{state}} {{reason}} {{cluster}}",
                    )
                ],
                "For how long; `held`: a brake kept it in.",
                unit="s",
                empty="it was never out of service",
            ),
            series(
                "Findings over time",
                [
                    (
                        'max by (cluster, component, severity, code) (sentinel_node_finding{node="$node"})',
                        "{{severity}} {{component}} {{code}} {{cluster}}",
                    )
                ],
                "Degraded and fatal ones, as the controller knows them.",
                empty="nothing was found",
            ),
            series(
                "GPU temperature",
                [(gpu("DCGM_FI_DEV_GPU_TEMP"), "GPU {{gpu}} {{cluster}}")],
                "One above the others: its cooling.",
                unit="celsius",
                steps=((None, GREEN), (87, RED)),
                empty="no GPU is seen there",
            ),
            series(
                "GPU utilization",
                [(gpu("DCGM_FI_DEV_GPU_UTIL"), "GPU {{gpu}} {{cluster}}")],
                "Time in which a kernel ran.",
                unit="percent",
                empty="no GPU is seen there",
            ),
            series(
                "GPU clock",
                [(gpu("DCGM_FI_DEV_SM_CLOCK"), "GPU {{gpu}} {{cluster}}")],
                "In MHz. One below the others: it is slowed down.",
                unit="rotmhz",
                empty="no GPU is seen there",
            ),
            series(
                "GPU power",
                [(gpu("DCGM_FI_DEV_POWER_USAGE"), "GPU {{gpu}} {{cluster}}")],
                "Near its limit is where it should be.",
                unit="watt",
                empty="no GPU is seen there",
            ),
            series(
                "GPU memory errors",
                [
                    (gpu("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"), "GPU {{gpu}} corrected {{cluster}}"),
                    (gpu("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"), "GPU {{gpu}} uncorrected {{cluster}}"),
                ],
                "Since the driver was loaded.",
                empty="no GPU is seen there",
            ),
            series(
                "Network traffic",
                [
                    (
                        f"rate(node_infiniband_port_data_received_bytes_total{rate}) {ON_NODE}",
                        "{{device}}/{{port}} in {{cluster}}",
                    ),
                    (
                        f"rate(node_infiniband_port_data_transmitted_bytes_total{rate}) {ON_NODE}",
                        "{{device}}/{{port}} out {{cluster}}",
                    ),
                ],
                "Ports of a rail should look alike.",
                unit="Bps",
                empty="no InfiniBand port is seen there",
            ),
            series(
                "Ports up",
                [(f"node_infiniband_state_id {ON_NODE}", "{{device}}/{{port}} {{cluster}}")],
                "4 is active.",
                steps=((None, RED), (4, GREEN)),
                empty="no InfiniBand port is seen there",
            ),
            series(
                "Link errors",
                [
                    (
                        f"rate(node_infiniband_symbol_error_total{rate}) {ON_NODE}",
                        "{{device}} symbols {{cluster}}",
                    ),
                    (
                        f"rate(node_infiniband_link_downed_total{rate}) {ON_NODE}",
                        "{{device}} down {{cluster}}",
                    ),
                ],
                "Cables and transceivers.",
                unit="cps",
                empty="no InfiniBand port is seen there",
            ),
            series(
                "Ethernet links up",
                [(f"node_network_up {ON_NODE}", "{{device}} {{cluster}}")],
                "1: enabled, and has carrier.",
                steps=((None, RED), (1, GREEN)),
                empty="no Ethernet interface for training is seen there",
            ),
            series(
                "Ethernet errors",
                [
                    (f"rate(node_network_receive_errs_total{rate}) {ON_NODE}", "{{device}} in {{cluster}}"),
                    (f"rate(node_network_transmit_errs_total{rate}) {ON_NODE}", "{{device}} out {{cluster}}"),
                    (
                        f"rate(node_network_carrier_changes_total{rate}) {ON_NODE}",
                        "{{device}} carrier came or went {{cluster}}",
                    ),
                ],
                "Cables, transceivers, and what is at their other end.",
                unit="cps",
                empty="no Ethernet interface for training is seen there",
            ),
            series(
                "Time of its checks, 95 %",
                [
                    (
                        p95(
                            "cluster, check", f"rate(sentinel_check_duration_seconds_bucket{rate}) {ON_NODE}"
                        ),
                        "{{check}} {{cluster}}",
                    )
                ],
                "A check that gets slow tells of a driver in trouble.",
                unit="s",
            ),
        ],
        [variable("node", "Node", "sentinel_agent_info")],
    )
