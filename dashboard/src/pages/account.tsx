// The reader's own account: who is signed in, sessions, and second factors.
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
      <AuthenticatorApp />
      <SecurityKey />
    </main>
  );
}

/** Enrols an authenticator app. */
function AuthenticatorApp() {
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
        <Enrolled what="app" recoveryCodes={recoveryCodes} />
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

/** Enrols a security key or passkey, where the browser has WebAuthn: on a page of a host name, over https or on this machine. */
function SecurityKey() {
  const { client } = usePage();
  const [recoveryCodes, setRecoveryCodes] = useState<readonly string[]>();
  const register = useAction(async (name: string) => {
    const { options } = await client.post('/api/v1/auth/mfa/webauthn/register/begin');
    const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(
      options as unknown as PublicKeyCredentialCreationOptionsJSON,
    );
    const credential = await navigator.credentials.create({ publicKey });
    const response = { ...(credential as PublicKeyCredential).toJSON() };
    const { recovery_codes: codes } = await client.post('/api/v1/auth/mfa/webauthn/register/finish', {
      body: { response, name },
    });
    setRecoveryCodes(codes);
  });
  if (!('PublicKeyCredential' in window)) return null;
  return (
    <section class="panel">
      <h2>Security keys and passkeys</h2>
      <ErrorNotice failure={register.failure} />
      {recoveryCodes && <Enrolled what="key" recoveryCodes={recoveryCodes} />}
      <form
        class="stack"
        onSubmit={(event) => {
          event.preventDefault();
          register.run((fieldsOf(event.currentTarget).name ?? '').trim());
        }}
      >
        <p>Asks for a key, or for what unlocks this device, at each sign-in with a password.</p>
        <Field label="Name of the key">
          <input name="name" required maxLength={64} spellcheck={false} />
        </Field>
        <button type="submit" disabled={register.isRunning}>
          Add a key
        </button>
      </form>
    </section>
  );
}

/** Confirms an enrolment. With a first factor there are recovery codes. */
const Enrolled = ({ what, recoveryCodes }: { readonly what: string; readonly recoveryCodes: readonly string[] }) => (
  <div role="status">
    {recoveryCodes.length === 0 ? (
      <p class="notice good">The {what} is enrolled. The recovery codes that you have go on to work.</p>
    ) : (
      <>
        <p class="notice good">
          The {what} is enrolled. Each of these recovery codes signs you in once, without the {what}.
        </p>
        <ul class="codes">
          {recoveryCodes.map((code) => (
            <li key={code}>
              <code>{code}</code>
            </li>
          ))}
        </ul>
        <p>They are not shown again: write them down.</p>
      </>
    )}
  </div>
);
