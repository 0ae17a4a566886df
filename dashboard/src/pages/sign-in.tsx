// Signing in: e-mail address and password, or a single sign-on provider; then a second factor if the user has one.
import type { KelletClient, Schema, Tokens } from '@kellet/client';
import { type ComponentChildren, toChildArray } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import { type Failure, failureOf } from '../failure.ts';
import { fieldsOf } from '../interface/form.ts';
import { ErrorNotice, Field, Title } from '../interface/parts.tsx';
import { ssoReturn, ssoStartUrl } from '../session/single-sign-on.ts';

interface SignInProps {
  readonly api: string;
  readonly client: KelletClient;
  /** Why the user must sign in again. */
  readonly reason: string;
  /** Where to go afterwards. */
  readonly next: string;
  readonly onSignedIn: (tokens: Tokens, email: string) => void;
  /** Begins a session with a refresh token from the address, which it exchanges. */
  readonly onReturned: (refreshToken: string) => Promise<void>;
}

/** A sign-in that lacks its second factor. */
interface SecondStep {
  readonly mfaToken: string;
  readonly methods: readonly string[];
  readonly email: string;
}

/** Asks for the credentials. */
export function SignIn({ api, client, reason, next, onSignedIn, onReturned }: SignInProps) {
  const [second, setSecond] = useState<SecondStep>();
  const [isBusy, setBusy] = useState(false);
  const [failure, setFailure] = useState<Failure>();
  const [isSso, setSso] = useState(false);

  const proceed = (response: Schema<'TokenResponse'>, email: string): void => {
    const { mfa_token: mfaToken, mfa_methods: methods } = response;
    if (mfaToken !== '') setSecond({ mfaToken, methods, email });
    else onSignedIn(response, email);
  };
  const attempt = (work: () => Promise<void>): void => {
    setBusy(true);
    setFailure(undefined);
    work().then(
      () => setBusy(false),
      (error: unknown) => {
        setBusy(false);
        setFailure(failureOf(error));
      },
    );
  };

  // The return from a provider. The tokens leave the address bar before anything else happens.
  useEffect(() => {
    const { hash, search } = location;
    if (hash === '') return;
    history.replaceState(null, '', location.pathname);
    const returned = ssoReturn(hash, new URLSearchParams(search).get('mark'), sessionStorage);
    if (!returned) return setFailure({ message: 'This sign-in was not started here. Sign in again.', requestId: '' });
    const { mfa_token: mfaToken, mfa_methods: methods, refresh_token: refreshToken } = returned;
    if (mfaToken !== '') setSecond({ mfaToken, methods, email: '' });
    else attempt(() => onReturned(refreshToken));
  }, []);

  const signIn = (form: HTMLFormElement): void => {
    const { email, password, tenant } = fieldsOf(form);
    attempt(async () => {
      const body = { email: email!, password: password!, ...(tenant ? { tenant_id: tenant } : {}) };
      proceed(await client.post('/api/v1/auth/login', { body }), email!);
    });
  };
  const startSso = (form: HTMLFormElement): void => {
    const environment = {
      storage: sessionStorage,
      newMark: () => crypto.getRandomValues(new BigUint64Array(2)).join(''),
    };
    const { provider = '', tenant } = fieldsOf(form);
    const url = ssoStartUrl(api, location.origin, { provider, tenant }, next, environment);
    attempt(async () => {
      // The redirect is requested first, so that a refusal is shown here instead of as a page of JSON.
      const response = await fetch(url, { redirect: 'manual' });
      if (response.type !== 'opaqueredirect') {
        const { message = 'The provider cannot be used' } = (await response.json()) as { message?: string };
        throw new Error(message === 'provider not found' ? 'No such provider' : message);
      }
      location.assign(url);
    });
  };

  return (
    <main class="narrow">
      <Title text={second ? 'Second factor' : 'Sign in'} />
      {reason !== '' && (
        <p class="notice" role="status">
          {reason}
        </p>
      )}
      <ErrorNotice failure={failure} />
      {second ? (
        <SecondFactor
          step={second}
          client={client}
          isBusy={isBusy}
          attempt={attempt}
          onTokens={(tokens) => onSignedIn(tokens, second.email)}
          onCancel={() => setSecond(undefined)}
        />
      ) : isSso ? (
        <Form label="Continue" isBusy={isBusy} onSubmit={startSso}>
          <Field label="E-mail address, domain or provider">
            <input name="provider" required autocomplete="email" autofocus spellcheck={false} />
          </Field>
          <TenantField />
          <button type="button" class="plain" onClick={() => setSso(false)}>
            Sign in with a password instead
          </button>
        </Form>
      ) : (
        <Form label="Sign in" isBusy={isBusy} onSubmit={signIn}>
          <Field label="E-mail address">
            <input name="email" type="email" required autocomplete="username" autofocus />
          </Field>
          <Field label="Password">
            <input name="password" type="password" required autocomplete="current-password" />
          </Field>
          <TenantField />
          <button type="button" class="plain" onClick={() => setSso(true)}>
            Use single sign-on
          </button>
        </Form>
      )}
    </main>
  );
}

/** Names the tenant, which is needed if several have the same address or provider. */
const TenantField = () => (
  <details>
    <summary>More than one tenant?</summary>
    <Field label="Tenant">
      <input name="tenant" autocomplete="organization" spellcheck={false} />
    </Field>
  </details>
);

function SecondFactor({
  step,
  client,
  isBusy,
  attempt,
  onTokens,
  onCancel,
}: {
  readonly step: SecondStep;
  readonly client: KelletClient;
  readonly isBusy: boolean;
  readonly attempt: (work: () => Promise<void>) => void;
  readonly onTokens: (tokens: Tokens) => void;
  readonly onCancel: () => void;
}) {
  const { mfaToken: mfa_token, methods } = step;
  const verify = (form: HTMLFormElement): void => {
    const { code = '' } = fieldsOf(form);
    attempt(async () => {
      onTokens(await client.post('/api/v1/auth/mfa/verify', { body: { mfa_token, code: code.trim() } }));
    });
  };
  const useKey = (): void =>
    attempt(async () => {
      const { options } = await client.post('/api/v1/auth/mfa/webauthn/login/begin', { body: { mfa_token } });
      const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(
        options as unknown as PublicKeyCredentialRequestOptionsJSON,
      );
      const credential = await navigator.credentials.get({ publicKey });
      const response = { ...(credential as PublicKeyCredential).toJSON() };
      onTokens(await client.post('/api/v1/auth/mfa/webauthn/login/finish', { body: { mfa_token, response } }));
    });
  const hasKey = methods.includes('webauthn') && 'PublicKeyCredential' in window;
  return (
    <>
      {hasKey && (
        <button type="button" class="primary wide" disabled={isBusy} onClick={useKey}>
          Use a security key
        </button>
      )}
      <Form label="Continue" isBusy={isBusy} onSubmit={verify}>
        <Field label="Code of the authenticator app, or a recovery code">
          <input name="code" required autocomplete="one-time-code" autofocus={!hasKey} spellcheck={false} />
        </Field>
        <button type="button" class="plain" onClick={onCancel}>
          Back
        </button>
      </Form>
    </>
  );
}

function Form({
  label,
  isBusy,
  onSubmit,
  children,
}: {
  readonly label: string;
  readonly isBusy: boolean;
  readonly onSubmit: (form: HTMLFormElement) => void;
  readonly children: ComponentChildren;
}) {
  // The last one leads to another page, so it comes after the button.
  const all = toChildArray(children);
  return (
    <form
      class="panel stack"
      onSubmit={(event) => {
        event.preventDefault();
        onSubmit(event.currentTarget);
      }}
    >
      {all.slice(0, -1)}
      <button type="submit" class="primary" disabled={isBusy}>
        {label}
      </button>
      {all.at(-1)}
    </form>
  );
}
