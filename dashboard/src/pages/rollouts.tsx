// The list of rollouts.
import type { Schema } from '@kellet/client';
import { percent } from '../format.ts';
import { usePage } from '../interface/context.ts';
import { usePages } from '../interface/data.ts';
import { navigate } from '../interface/navigation.ts';
import { Age, Field, Pager, Show, Table, Tag, Title } from '../interface/parts.tsx';
import { ProgressBar } from '../rollouts/progress-bar.tsx';
import { pathWith } from '../routes.ts';

/** Lists rollouts, optionally of one status. */
export function Rollouts({ query }: { readonly query: URLSearchParams }) {
  const { client } = usePage();
  const status = query.get('status') ?? '';
  const pages = usePages(
    `rollouts ${status}`,
    (page_token) =>
      client.get('/api/v1/ota/rollouts', {
        params: {
          query: {
            page_token,
            page_size: 25,
            ...(status === '' ? {} : { status: status as Schema<'RolloutStatus'> }),
          },
        },
      }),
    15,
  );
  return (
    <main>
      <Title text="Rollouts" />
      <div class="filters">
        <Field label="Status">
          <select
            value={status}
            onChange={(event) => navigate(pathWith('/rollouts', { status: event.currentTarget.value }))}
          >
            <option value="">any</option>
            <option value="active">active</option>
            <option value="paused">paused</option>
            <option value="rolling_back">rolling back</option>
            <option value="completed">completed</option>
          </select>
        </Field>
      </div>
      <Show of={pages}>
        {({ rollouts }) => (
          <Table
            caption="Rollouts"
            columns={['Name', 'Status', 'Progress', 'Failed', 'Created']}
            empty="There are no rollouts."
            rows={rollouts.map((rollout) => ({
              key: rollout.rollout_id,
              cells: [
                <a href={`/rollouts/${rollout.rollout_id}`}>{rollout.name || rollout.rollout_id}</a>,
                <>
                  <Tag state={rollout.status} /> {rollout.outcome && <Tag state={rollout.outcome} />}
                </>,
                <ProgressBar rollout={rollout} />,
                percent(rollout.failure_percent),
                <Age time={rollout.created_at} />,
              ],
            }))}
          />
        )}
      </Show>
      <Pager pages={pages} />
    </main>
  );
}
