// The library for X.509 certificates and requests, with what it needs to be loaded before it.
import 'reflect-metadata';

export * from '@peculiar/x509';
