// The attributes of a device. Those shared with it can be set here.
import { plain } from '../format.ts';
import { usePage } from '../interface/context.ts';
import { useAction, useLoaded } from '../interface/data.ts';
import { fieldsOf } from '../interface/form.ts';
import { Age, ErrorNotice, Field, Show, Table } from '../interface/parts.tsx';
import { jsonOr } from '../json-input.ts';

const scopes = [
  ['shared', 'Shared: set here, sent to the device'],
  ['client', 'Client: set by the device'],
  ['server', 'Server: for integrations, not shown to the device'],
] as const;

/** Shows the attributes of the three scopes. */
export function Attributes({ deviceId }: { readonly deviceId: string }) {
  const { client, say } = usePage();
  const path = { device_id: deviceId };
  const attributes = useLoaded(`attributes ${deviceId}`, () =>
    client.get('/api/v1/devices/{device_id}/attributes', { params: { path } }),
  );
  const change = useAction(async (name: string, value: unknown) => {
    const shared = { [name]: value } as Record<string, never>;
    attributes.set(
      await client.patch('/api/v1/devices/{device_id}/attributes', { params: { path }, body: { shared } }),
    );
    say(value === null ? `${name} was removed.` : `${name} was set.`);
  });
  return (
    <section class="panel">
      <h2>Attributes</h2>
      <ErrorNotice failure={change.failure} />
      <Show of={attributes}>
        {(value) => (
          <>
            {scopes.map(([scope, title]) => (
              <section key={scope}>
                <h3>{title}</h3>
                <Table
                  caption={title}
                  columns={scope === 'shared' ? ['Name', 'Value', 'Changed', 'Remove'] : ['Name', 'Value', 'Changed']}
                  empty="None."
                  rows={Object.entries(value[scope]).map(([name, attribute]) => ({
                    key: name,
                    cells: [
                      name,
                      plain(attribute.value),
                      <Age time={attribute.updated_at} />,
                      ...(scope === 'shared'
                        ? [
                            <button
                              type="button"
                              aria-label={`Remove ${name}`}
                              disabled={change.isRunning}
                              onClick={() => change.run(name, null)}
                            >
                              Remove
                            </button>,
                          ]
                        : []),
                    ],
                  }))}
                />
              </section>
            ))}
            <form
              class="filters"
              onSubmit={(event) => {
                event.preventDefault();
                const { name = '', value: text = '' } = fieldsOf(event.currentTarget);
                change.run(name, jsonOr(text));
              }}
            >
              <Field label="Shared attribute">
                <input name="name" required spellcheck={false} />
              </Field>
              <Field label="Value (text or JSON)">
                <input name="value" required spellcheck={false} />
              </Field>
              <button type="submit" disabled={change.isRunning}>
                Set
              </button>
            </form>
          </>
        )}
      </Show>
    </section>
  );
}
