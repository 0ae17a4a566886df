// The second factors of the reader: an authenticator app, security keys and passkeys, and recovery codes.
import type { Schema } from '@kellet/client';
import { useState } from 'preact/hooks';
import { usePage } from '../interface/context.ts';
import { useAction, useLoaded } from '../interface/data.ts';
import { fieldsOf } from '../interface/form.ts';
import { Age, ConfirmButton, ErrorNotice, Field, Show, Table } from '../interface/parts.tsx';

type Factors = Schema<'SecondFactors'>;

interface PanelProps {
  readonly factors: Factors;
  /** Called when a factor was added or removed, or recovery codes replaced. */
  readonly onChange: () => void;
}

/** Shows, adds and removes second factors. */
export function SecondFactors() {
  const { client } = usePage();
  const factors = useLoaded('second factors', () => client.get('/api/v1/auth/mfa'));
  return (
    <Show of={factors}>
      {(value) => (
        <>
          <AuthenticatorApp factors={value} onChange={factors.reload} />
          <SecurityKeys factors={value} onChange={factors.reload} />
          <RecoveryCodes factors={value} onChange={factors.reload} />
        </>
      )}
    </Show>
  );
}

function AuthenticatorApp({ factors, onChange }: PanelProps) {
  const { client } = usePage();
  const [enrolment, setEnrolment] = useState<{ secret: string; otpauth_uri: string }>();
  const [recoveryCodes, setRecoveryCodes] = useState<readonly string[]>();
  const begin = useAction(async () => setEnrolment(await client.post('/api/v1/auth/mfa/totp')));
  const confirm = useAction(async (code: string) => {
    const { recovery_codes: codes } = await client.post('/api/v1/auth/mfa/totp/confirm', { body: { code } });
    setEnrolment(undefined);
    setRecoveryCodes(codes);
    onChange();
  });
  const remove = useAction(async () => {
    await client.delete('/api/v1/auth/mfa/totp');
    setRecoveryCodes(undefined);
    onChange();
  });
  return (
    <section class="panel">
      <h2>Authenticator app</h2>
      <ErrorNotice failure={begin.failure ?? confirm.failure ?? remove.failure} />
      {recoveryCodes && <Enrolled what="app" recoveryCodes={recoveryCodes} />}
      {enrolment ? (
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
          <p>
            {factors.totp
              ? 'An app is enrolled. Another one replaces it, and the recovery codes.'
              : 'Asks for a code of an app on your phone at each sign-in with a password.'}
          </p>
          <div class="row">
            <button type="button" disabled={begin.isRunning} onClick={() => begin.run()}>
              {factors.totp ? 'Replace the app' : 'Set up'}
            </button>
            {factors.totp && (
              <ConfirmButton
                label="Remove the app"
                question="Remove the authenticator app? Its codes stop working."
                tone="danger"
                disabled={remove.isRunning}
                onConfirm={() => remove.run()}
              />
            )}
          </div>
        </>
      )}
    </section>
  );
}

/** Security keys and passkeys. They are added where the browser has WebAuthn: on a page of a host name, over https or on this machine. */
function SecurityKeys({ factors, onChange }: PanelProps) {
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
    onChange();
  });
  const remove = useAction(async (credentialId: string) => {
    const path = { credential_id: credentialId };
    await client.delete('/api/v1/auth/mfa/webauthn/{credential_id}', { params: { path } });
    setRecoveryCodes(undefined);
    onChange();
  });
  return (
    <section class="panel">
      <h2>Security keys and passkeys</h2>
      <ErrorNotice failure={register.failure ?? remove.failure} />
      {recoveryCodes && <Enrolled what="key" recoveryCodes={recoveryCodes} />}
      <Table
        caption="Security keys and passkeys"
        columns={['Name', 'Added', 'Last used', 'Actions']}
        empty="None."
        rows={factors.security_keys.map((key) => ({
          key: key.credential_id,
          cells: [
            <span class="wrap">{key.name || 'without a name'}</span>,
            <Age time={key.created_at} />,
            key.last_used_at ? <Age time={key.last_used_at} /> : 'never',
            <ConfirmButton
              label="Remove"
              question={`Remove the key ${key.name}? It no longer completes your sign-ins.`}
              tone="danger"
              disabled={remove.isRunning}
              onConfirm={() => remove.run(key.credential_id)}
            />,
          ],
        }))}
      />
      {'PublicKeyCredential' in window && (
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
      )}
    </section>
  );
}

/** How many recovery codes are left, and new ones instead. There are none without a second factor. */
function RecoveryCodes({ factors, onChange }: PanelProps) {
  const { client } = usePage();
  const [recoveryCodes, setRecoveryCodes] = useState<readonly string[]>();
  const replace = useAction(async () => {
    const { recovery_codes: codes } = await client.post('/api/v1/auth/mfa/recovery-codes');
    setRecoveryCodes(codes);
    onChange();
  });
  if (!factors.totp && factors.security_keys.length === 0) return null;
  return (
    <section class="panel">
      <h2>Recovery codes</h2>
      <ErrorNotice failure={replace.failure} />
      <p>{factors.recovery_codes_left} of them are unused. Each signs you in once, without a second factor.</p>
      {recoveryCodes && (
        <div role="status">
          <p class="notice good">The earlier recovery codes have stopped working.</p>
          <CodeList codes={recoveryCodes} />
        </div>
      )}
      <ConfirmButton
        label="Replace the recovery codes"
        question="Replace the recovery codes? Those that you have stop working."
        disabled={replace.isRunning}
        onConfirm={() => replace.run()}
      />
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
        <CodeList codes={recoveryCodes} />
      </>
    )}
  </div>
);

const CodeList = ({ codes }: { readonly codes: readonly string[] }) => (
  <>
    <ul class="codes">
      {codes.map((code) => (
        <li key={code}>
          <code>{code}</code>
        </li>
      ))}
    </ul>
    <p>They are not shown again: write them down.</p>
  </>
);
