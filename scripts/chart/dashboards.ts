// The dashboards of Grafana: rows of panels, each with one or more queries, laid out from left to right.

/** A query and the legend of its lines. */
type Query = readonly [expression: string, legend: string];
/** A panel: its title, the unit of Grafana, and its queries. */
type Panel = readonly [title: string, unit: string, ...queries: readonly Query[]];

interface Board {
  readonly title: string;
  readonly rows: readonly (readonly [title: string, panels: readonly Panel[]])[];
}

/** In every query: the chosen namespace and pods. */
const chosen = 'namespace=~"$namespace"';

const quantile = (of: number, metric: string, by: string): string =>
  `histogram_quantile(${of}, sum by (le${by && `, ${by}`}) (rate(${metric}_bucket{${chosen}}[$__rate_interval])))`;
const rate = (metric: string, by: string, more = ''): string =>
  `sum by (${by}) (rate(${metric}{${chosen}${more}}[$__rate_interval]))`;
const maximum = (metric: string, by = ''): string => `max${by && ` by (${by})`} (${metric}{${chosen}})`;

const processes: Board['rows'][number] = [
  'Processes',
  [
    ['CPU', 'percentunit', [rate('process_cpu_seconds_total', 'pod'), '{{pod}}']],
    ['Memory', 'bytes', [maximum('process_resident_memory_bytes', 'pod'), '{{pod}}']],
    ['Event loop, 99th percentile', 's', [maximum('nodejs_eventloop_lag_p99_seconds', 'pod'), '{{pod}}']],
  ],
];

const boards: Readonly<Record<string, Board>> = {
  'kellet-gateway': {
    title: 'Kellet / Gateway',
    rows: [
      [
        'Calls',
        [
          ['Calls', 'reqps', [rate('kellet_gateway_calls_total', 'transport'), '{{transport}}']],
          ['Failed calls', 'reqps', [rate('kellet_gateway_calls_total', 'code', ', code!="OK"'), '{{code}}']],
          [
            'Duration of calls',
            's',
            [quantile(0.5, 'kellet_gateway_call_seconds', ''), 'median'],
            [quantile(0.99, 'kellet_gateway_call_seconds', ''), '99th percentile'],
          ],
          ['Calls by service', 'reqps', [rate('kellet_gateway_calls_total', 'service'), '{{service}}']],
          [
            'Limited requests',
            'reqps',
            [`topk(10, ${rate('svc_gateway_rate_limited_total', 'tenant')})`, '{{tenant}}'],
          ],
          ['Sign-ins', 'reqps', [rate('kellet_auth_logins_total', 'outcome'), '{{outcome}}']],
        ],
      ],
      [
        'Connections',
        [
          [
            'Open connections',
            'short',
            [`sum(kellet_websocket_connections{${chosen}})`, '/ws'],
            [`sum by (transport) (kellet_mqtt_connections{${chosen}})`, 'MQTT over {{transport}}'],
            [`sum(kellet_device_streams{${chosen}})`, 'gRPC streams of devices'],
          ],
          ['MQTT connects', 'reqps', [rate('kellet_mqtt_connects_total', 'code'), '{{code}}']],
          ['Ends of MQTT connections', 'reqps', [rate('kellet_mqtt_disconnects_total', 'reason'), '{{reason}}']],
        ],
      ],
      processes,
    ],
  },
  'kellet-telemetry': {
    title: 'Kellet / Telemetry and anchoring',
    rows: [
      [
        'Points',
        [
          ['Points', 'cps', [rate('kellet_telemetry_points_total', 'result'), '{{result}}']],
          [
            'Time until points are durable',
            's',
            [quantile(0.5, 'kellet_telemetry_ingest_seconds', ''), 'median'],
            [quantile(0.99, 'kellet_telemetry_ingest_seconds', ''), '99th percentile'],
          ],
          ['Slow statements', 'ops', [rate('kellet_database_slow_statement_seconds_count', 'pod'), '{{pod}}']],
          ['Points that turn cold', 'cps', [rate('kellet_cold_points_total', 'pod'), '{{pod}}']],
          ['Hot segments', 'short', [maximum('kellet_hot_segments'), 'segments']],
          ['Refused by quota', 'cps', [rate('kellet_telemetry_quota_refused_points_total', 'tenant'), '{{tenant}}']],
        ],
      ],
      [
        'Anchors',
        [
          ['Batches that are not confirmed', 'short', [maximum('kellet_anchor_batches', 'status'), '{{status}}']],
          ['Oldest unconfirmed batch', 's', [maximum('kellet_anchor_oldest_unconfirmed_seconds'), 'age']],
          ['Submissions', 'ops', [rate('kellet_anchor_submissions_total', 'result'), '{{result}}']],
          ['Header chain', 'short', [maximum('kellet_anchor_chain_height'), 'height']],
          ['Coins', 'short', [maximum('kellet_anchor_wallet_coins', 'state'), '{{state}}']],
          ['Satoshis', 'short', [maximum('kellet_anchor_wallet_satoshis'), 'free, or will be']],
        ],
      ],
      [
        'Events and rules',
        [
          ['Oldest event waiting for the broker', 's', [maximum('kellet_outbox_oldest_seconds'), 'age']],
          ['Evaluations of rules', 'ops', [rate('kellet_rule_evaluations_total', 'result'), '{{result}}']],
          ['Oldest point waiting for rules', 's', [maximum('kellet_rule_lag_seconds'), 'age']],
        ],
      ],
    ],
  },
  'kellet-operator': {
    title: 'Kellet / Devices and operator',
    rows: [
      [
        'Devices',
        [
          ['Claims', 'reqps', [rate('kellet_claims_total', 'outcome'), '{{outcome}}']],
          [
            'Transfers of artifacts',
            'short',
            [`sum by (kind, state) (kellet_artifact_transfers{${chosen}})`, '{{kind}}, {{state}}'],
          ],
          ['Bytes of artifacts', 'bytes', [maximum('kellet_artifact_bytes', 'state'), '{{state}}']],
        ],
      ],
      [
        'Operator',
        [
          [
            'Reconciles',
            'ops',
            [rate('controller_runtime_reconcile_total', 'controller, result'), '{{controller}}, {{result}}'],
          ],
          [
            'Duration of reconciles, 99th percentile',
            's',
            [quantile(0.99, 'controller_runtime_reconcile_time_seconds', 'controller'), '{{controller}}'],
          ],
          ['Queued keys', 'short', [maximum('workqueue_depth', 'name'), '{{name}}']],
          [
            'Requests to Kubernetes',
            'reqps',
            [rate('rest_client_requests_total', 'method, code'), '{{method}} {{code}}'],
          ],
          [
            'Repaired drift',
            'short',
            [`sum by (kind) (increase(kellet_operator_drift_total{${chosen}}[1h]))`, '{{kind}}'],
          ],
          ['Leader', 'short', [maximum('leader_election_master_status', 'pod'), '{{pod}}']],
        ],
      ],
      processes,
    ],
  },
};

/** Returns the expression of every panel, by dashboard. */
export function dashboardQueries(): { dashboard: string; expression: string }[] {
  return Object.entries(boards).flatMap(([dashboard, { rows }]) =>
    rows.flatMap(([, panels]) =>
      panels.flatMap(([, , ...queries]) => queries.map(([expression]) => ({ dashboard, expression }))),
    ),
  );
}

const source = { type: 'prometheus', uid: '$source' };

/** Returns the dashboards by name, in Grafana's form. */
export function dashboards(): Record<string, object> {
  return Object.fromEntries(
    Object.entries(boards).map(([name, { title, rows }]) => [
      name,
      {
        uid: name,
        title,
        tags: ['kellet'],
        timezone: 'utc',
        schemaVersion: 39,
        refresh: '30s',
        time: { from: 'now-3h', to: 'now' },
        templating: {
          list: [
            { name: 'source', label: 'Source', type: 'datasource', query: 'prometheus' },
            {
              name: 'namespace',
              label: 'Namespace',
              type: 'query',
              datasource: source,
              query: 'label_values(nodejs_eventloop_lag_p99_seconds, namespace)',
              includeAll: true,
              multi: true,
              current: { text: 'All', value: '$__all' },
              refresh: 2,
            },
          ],
        },
        panels: panelsOf(rows),
      },
    ]),
  );
}

const columns = 3;
const width = 24 / columns;
const height = 8;

function panelsOf(rows: Board['rows']): object[] {
  const made: object[] = [];
  let top = 0;
  for (const [title, panels] of rows) {
    made.push({
      id: made.length + 1,
      type: 'row',
      title,
      collapsed: false,
      panels: [],
      gridPos: { x: 0, y: top, w: 24, h: 1 },
    });
    top += 1;
    for (const [index, [name, unit, ...queries]] of panels.entries()) {
      const x = (index % columns) * width;
      const y = top + Math.floor(index / columns) * height;
      made.push({
        id: made.length + 1,
        type: 'timeseries',
        title: name,
        datasource: source,
        gridPos: { x, y, w: width, h: height },
        fieldConfig: { defaults: { unit, min: 0 }, overrides: [] },
        targets: queries.map(([expr, legendFormat], at) => ({ refId: 'ABC'[at], expr, legendFormat })),
      });
    }
    top += Math.ceil(panels.length / columns) * height;
  }
  return made;
}
