// What happened to a device: firmware, status, profile, credentials.
import { dateTime, words } from '../format.ts';
import { usePage } from '../interface/context.ts';
import { usePages } from '../interface/data.ts';
import { Pager, Show, Table } from '../interface/parts.tsx';

/** Lists the events, newest first. */
export function DeviceEvents({ deviceId }: { readonly deviceId: string }) {
  const { client } = usePage();
  const pages = usePages(`events ${deviceId}`, (page_token) =>
    client.get('/api/v1/devices/{device_id}/history', {
      params: { path: { device_id: deviceId }, query: { page_size: 20, page_token } },
    }),
  );
  return (
    <section class="panel">
      <h2>Events</h2>
      <Show of={pages}>
        {({ events }) => (
          <Table
            caption="Events"
            columns={['Time', 'What', 'From', 'To']}
            empty="Nothing has happened yet."
            rows={events.map((event, index) => ({
              key: `${event.time} ${index}`,
              cells: [dateTime(event.time), words(event.kind), event.from || '–', event.to || '–'],
            }))}
          />
        )}
      </Show>
      <Pager pages={pages} />
    </section>
  );
}
