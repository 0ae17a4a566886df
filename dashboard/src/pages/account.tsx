// The reader's own account: who is signed in, sessions, and a second factor.
import { useState } from 'preact/hooks';
import { usePage } from '../interface/context.ts';
import { useAction, usePages } from '../interface/data.ts';
import { fieldsOf } from '../interface/form.ts';
import { leaveTo } from '../interface/navigation.ts';
import { Age, ConfirmButton, ErrorNotice, Field, Pager, Show, Table, Tag, Title } from '../interface/parts.tsx';

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
      <SecondFactor />
    </main>
  );
}

/** Enrols an authenticator app. */
function SecondFactor() {
  const { client } = usePage();
  const [enrolment, setEnrolment] = useState<{ secret: string; otpauth_uri: string }>();
  const [recoveryCodes, setRecoveryCodes] = useState<readonly string[]>();
  const begin = useAction(async () => setEnrolment(await client.post('/api/v1/auth/mfa/totp')));
  const confirm = useAction(async (code: string) => {
    const { recovery_codes: codes } = await client.post('/api/v1/auth/mfa/totp/confirm', { body: { code } });
    setEnrolment(undefined);
    setRecoveryCodes(codes);
  });
  return (
    <section class="panel">
      <h2>Authenticator app</h2>
      <ErrorNotice failure={begin.failure ?? confirm.failure} />
      {recoveryCodes ? (
        <div role="status">
          <p class="notice good">
            The app is enrolled. Each of these recovery codes signs you in once, without the app.
          </p>
          <ul class="codes">
            {recoveryCodes.map((code) => (
              <li key={code}>
                <code>{code}</code>
              </li>
            ))}
          </ul>
          <p>They are not shown again: write them down.</p>
        </div>
      ) : enrolment ? (
        <form
          class="stack"
          onSubmit={(event) => {
            event.preventDefault();
            confirm.run((fieldsOf(event.currentTarget).code ?? '').trim());
          }}
        >
          <p>
            <a href={enrolment.otpauth_uri} target="_self">
              Open it in the app
            </a>
            , or type this secret into it:
          </p>
          <p>
            <code class="wrap">{enrolment.secret}</code>
          </p>
          <Field label="Code that the app shows">
            <input name="code" required inputMode="numeric" autocomplete="one-time-code" />
          </Field>
          <button type="submit" class="primary" disabled={confirm.isRunning}>
            Confirm
          </button>
        </form>
      ) : (
        <>
          <p>Asks for a code of an app on your phone at each sign-in with a password.</p>
          <button type="button" disabled={begin.isRunning} onClick={() => begin.run()}>
            Set up
          </button>
        </>
      )}
    </section>
  );
}
