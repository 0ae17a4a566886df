// The topics of the contract: what a device may publish, which filters it may subscribe to, and what these match.

/** Everything that the server publishes and devices publish is below this. */
const root = 'kellet/v1/';

/** Maximum length of a filter, in characters: more than any topic of the contract needs. */
const maxFilterCharacters = 256;

/** Maximum length of an id that the device chooses for a request. */
const maxRequestIdCharacters = 128;

/** What a device requests by publishing to a topic. Without `deviceId`, or with '', it concerns the device itself. */
export type Action =
  | { readonly kind: 'telemetry'; readonly deviceId: string }
  | { readonly kind: 'response'; readonly deviceId: string; readonly correlationId: string }
  | { readonly kind: 'attributes' }
  | { readonly kind: 'getAttributes'; readonly requestId: string }
  | { readonly kind: 'getUpdate'; readonly requestId: string }
  | { readonly kind: 'getChunk'; readonly packageId: string; readonly offset: string; readonly length: string }
  | { readonly kind: 'report' }
  | { readonly kind: 'claim' };

/** The topics on which the server publishes. */
export const topics = {
  commands: `${root}commands`,
  commandsOf: (deviceId: string) => `${root}gateway/${deviceId}/commands`,
  sharedAttributes: `${root}attributes/shared`,
  attributesResponse: (requestId: string) => `${root}attributes/answer/${requestId}`,
  updateResponse: (requestId: string) => `${root}ota/answer/${requestId}`,
  updateData: (packageId: string, offset: number) => `${root}ota/data/${packageId}/${offset}`,
  claimResponse: `${root}provision/answer`,
  errors: `${root}errors`,
} as const;

/** Returns what publishing to a topic means, or undefined if the contract has no such topic. */
export function actionOf(topic: string): Action | undefined {
  if (!topic.startsWith(root) || /[#+\0]/.test(topic)) return undefined;
  const levels = topic.slice(root.length).split('/');
  if (levels.includes('')) return undefined;
  const [area, second = '', third = '', fourth = '', fifth = ''] = levels;
  const shape = `${area} ${levels.length}`;
  if (shape === 'telemetry 1') return { kind: 'telemetry', deviceId: '' };
  if (shape === 'gateway 3' && third === 'telemetry') return { kind: 'telemetry', deviceId: second };
  if (shape === 'commands 3' && third === 'response') return { kind: 'response', deviceId: '', correlationId: second };
  if (shape === 'gateway 5' && third === 'commands' && fifth === 'response') {
    return { kind: 'response', deviceId: second, correlationId: fourth };
  }
  if (shape === 'attributes 1') return { kind: 'attributes' };
  if (shape === 'attributes 3' && second === 'get') return withRequestId('getAttributes', third);
  if (shape === 'ota 3' && second === 'get') return withRequestId('getUpdate', third);
  if (shape === 'ota 5' && second === 'chunk') {
    return { kind: 'getChunk', packageId: third, offset: fourth, length: fifth };
  }
  if (shape === 'ota 2' && second === 'report') return { kind: 'report' };
  if (shape === 'provision 1') return { kind: 'claim' };
  return undefined;
}

const withRequestId = (kind: 'getAttributes' | 'getUpdate', requestId: string): Action | undefined =>
  requestId.length <= maxRequestIdCharacters ? { kind, requestId } : undefined;

/** Reports whether a filter is well-formed and can match only topics of the device itself. */
export function isOwnFilter(filter: string): boolean {
  if (!filter.startsWith(root) || filter.length > maxFilterCharacters || filter.includes('\0')) return false;
  const levels = filter.slice(root.length).split('/');
  return levels.every((level, at) => (level === '#' ? at === levels.length - 1 : level === '+' || !/[#+]/.test(level)));
}

/** Reports whether a filter matches a topic (OASIS MQTT 5.0, 4.7). */
export function matches(filter: string, topic: string): boolean {
  const wanted = filter.split('/');
  const levels = topic.split('/');
  for (const [at, level] of wanted.entries()) {
    if (level === '#') return true;
    if (at >= levels.length || (level !== '+' && level !== levels[at])) return false;
  }
  return wanted.length === levels.length;
}

/** The subscriptions of a session: the granted QoS by filter. */
export type Subscriptions = ReadonlyMap<string, 0 | 1>;

/** Returns the QoS with which a topic is published to a session, or undefined if nothing of it matches. */
export function qosOf(subscriptions: Subscriptions, topic: string): 0 | 1 | undefined {
  let best: 0 | 1 | undefined;
  for (const [filter, qos] of subscriptions) {
    if (qos !== best && best !== 1 && matches(filter, topic)) best = qos;
  }
  return best;
}

/** What a session's subscriptions ask of the stream of commands. */
export interface Wanted {
  /** Of the commands to the device itself. */
  readonly own: 'all' | 'attributeChanges' | 'none';
  /** Children whose commands are wanted. */
  readonly children: 'all' | readonly string[];
}

/** Returns which commands a session's subscriptions match. */
export function wantedBy(subscriptions: Subscriptions): Wanted {
  const hasCommands = qosOf(subscriptions, topics.commands) !== undefined;
  const hasAttributes = qosOf(subscriptions, topics.sharedAttributes) !== undefined;
  const children = new Set<string>();
  for (const filter of subscriptions.keys()) {
    const [area, deviceId = '+'] = filter.slice(root.length).split('/');
    const child = area === '#' || deviceId === '#' ? '+' : deviceId;
    if (matches(filter, topics.commandsOf(child))) children.add(child);
  }
  return {
    own: hasCommands ? 'all' : hasAttributes ? 'attributeChanges' : 'none',
    children: children.has('+') ? 'all' : [...children],
  };
}
