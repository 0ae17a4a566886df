// The reader's own account: who is signed in, and sessions; second-factors.tsx shows the second factors.
import { usePage } from '../interface/context.ts';
import { useAction, usePages } from '../interface/data.ts';
import { leaveTo } from '../interface/navigation.ts';
import { Age, ConfirmButton, ErrorNotice, Pager, Show, Table, Tag, Title } from '../interface/parts.tsx';
import { SecondFactors } from './second-factors.tsx';

/** Shows the account. */
export function Account() {
  const { session, say } = usePage();
  const { caller, email } = session;
  const signOut = useAction(() => session.signOut().then(leaveTo));
  const others = useAction(async () => {
    await session.client.post('/api/v1/auth/sessions/revoke-all', { body: {} });
    say('All other sessions have ended.');
    sessions.reload();
  });
  const sessions = usePages('sessions', (page_token) =>
    session.client.get('/api/v1/auth/sessions', { params: { query: { page_token } } }),
  );
  const end = useAction(async (sessionId: string) => {
    await session.client.delete('/api/v1/auth/sessions/{session_id}', { params: { path: { session_id: sessionId } } });
    sessions.reload();
  });
  return (
    <main>
      <Title text="Account" />
      <section class="panel">
        <dl class="facts">
          {email !== '' && (
            <div>
              <dt>Signed in as</dt>
              <dd>{email}</dd>
            </div>
          )}
          <div>
            <dt>Tenant</dt>
            <dd>{caller?.tenant_id || 'none: administrator of the platform'}</dd>
          </div>
          <div>
            <dt>User id</dt>
            <dd>
              <code>{caller?.user_id}</code>
            </dd>
          </div>
        </dl>
        <button type="button" onClick={() => signOut.run()}>
          Sign out
        </button>
      </section>
      <section class="panel">
        <h2>Sessions</h2>
        <ErrorNotice failure={end.failure ?? others.failure} />
        <Show of={sessions}>
          {({ sessions: list }) => (
            <Table
              caption="Sessions"
              columns={['Browser', 'Address', 'Signed in', 'Last used', 'Second factor', 'Actions']}
              empty="None."
              rows={list.map((one) => ({
                key: one.session_id,
                cells: [
                  <span class="wrap">{one.user_agent || 'unknown'}</span>,
                  one.ip,
                  <Age time={one.created_at} />,
                  <Age time={one.last_used_at} />,
                  one.aal === 'aal2' ? 'yes' : 'no',
                  one.current ? (
                    <Tag state="this one" tone="info" />
                  ) : (
                    <button type="button" disabled={end.isRunning} onClick={() => end.run(one.session_id)}>
                      End
                    </button>
                  ),
                ],
              }))}
            />
          )}
        </Show>
        <Pager pages={sessions} />
        <ConfirmButton
          label="End all other sessions"
          question="End all other sessions? They have to sign in again."
          onConfirm={() => others.run()}
        />
      </section>
      <SecondFactors />
    </main>
  );
}
