// @kellet/verify: everything needed to create and check evidence that a telemetry point was anchored.
export * from './errors.ts';
export * from './bytes.ts';
export * from './sha256.ts';
export * from './leaf-hash.ts';
export * from './merkle.ts';
export * from './chain-mode.ts';
export * from './transaction.ts';
export * from './commitment.ts';
export * from './bump.ts';
export * from './beef.ts';
export * from './headers.ts';
export * from './bundle-schema.ts';
export * from './verdict.ts';
export * from './bundle.ts';
export * from './pins.ts';
export * from './header-source.ts';
