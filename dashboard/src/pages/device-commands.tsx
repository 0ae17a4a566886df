// The commands of a device: those sent so far, and a new one.
import { plain } from '../format.ts';
import { usePage } from '../interface/context.ts';
import { useAction, usePages } from '../interface/data.ts';
import { fieldsOf } from '../interface/form.ts';
import { Age, ConfirmButton, ErrorNotice, Field, Pager, Show, Table, Tag } from '../interface/parts.tsx';
import { jsonObject } from '../json-input.ts';

const unfinished: readonly string[] = ['queued', 'scheduled', 'sent'];

/** Lists the commands, newest first. */
export function Commands({ deviceId }: { readonly deviceId: string }) {
  const { client, say } = usePage();
  const pages = usePages(
    `commands ${deviceId}`,
    (page_token) =>
      client.get('/api/v1/devices/{device_id}/rpc', {
        params: { path: { device_id: deviceId }, query: { page_size: 20, page_token } },
      }),
    5,
  );
  const send = useAction(async (form: HTMLFormElement) => {
    const { method = '', params = '', persistent } = fieldsOf(form);
    await client.post('/api/v1/devices/{device_id}/rpc', {
      params: { path: { device_id: deviceId } },
      body: { method, params: jsonObject(params), persistent: persistent === 'on' },
    });
    form.reset();
    say(`${method} was sent.`);
    pages.reload();
  });
  const cancel = useAction(async (correlationId: string) => {
    await client.post('/api/v1/devices/rpc/{correlation_id}/cancel', {
      params: { path: { correlation_id: correlationId } },
    });
    pages.reload();
  });
  return (
    <section class="panel">
      <h2>Commands</h2>
      <form
        class="filters"
        onSubmit={(event) => {
          event.preventDefault();
          send.run(event.currentTarget);
        }}
      >
        <Field label="Method">
          <input name="method" required spellcheck={false} />
        </Field>
        <Field label="Parameters (JSON object)">
          <input name="params" placeholder="{}" spellcheck={false} />
        </Field>
        <label class="check">
          <input name="persistent" type="checkbox" /> keep for an offline device
        </label>
        <button type="submit" class="primary" disabled={send.isRunning}>
          Send
        </button>
      </form>
      <ErrorNotice failure={send.failure ?? cancel.failure} />
      <Show of={pages}>
        {({ commands }) => (
          <Table
            caption="Commands"
            columns={['Method', 'Parameters', 'Status', 'Response', 'Sent', 'Cancel']}
            empty="No commands yet."
            rows={commands.map((command) => ({
              key: command.correlation_id,
              cells: [
                command.method,
                <code class="wrap">{plain(command.params)}</code>,
                <Tag state={command.status} />,
                <code class="wrap">
                  {command.error || (command.response === undefined ? '–' : plain(command.response))}
                </code>,
                <Age time={command.created_at} />,
                unfinished.includes(command.status ?? '') ? (
                  <ConfirmButton
                    label="Cancel command"
                    question={`Cancel ${command.method}? A device that has it already may still carry it out.`}
                    onConfirm={() => cancel.run(command.correlation_id)}
                  />
                ) : (
                  '–'
                ),
              ],
            }))}
          />
        )}
      </Show>
      <Pager pages={pages} />
    </section>
  );
}
