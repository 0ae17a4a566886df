// The main package of cert-manager's controllers. Its own is in a Go module that is not published by itself; the controllers,
// which do all the work, are. Of its issuers only those that need nothing outside the cluster are compiled.

/** The version that is tested. */
export const certManagerVersion = 'v1.21.2';

const path = 'github.com/cert-manager/cert-manager/pkg';

/** Packages of controllers and issuers, which register themselves. */
const parts = [
  'controller/certificaterequests/approver',
  'controller/certificaterequests/ca',
  'controller/certificaterequests/selfsigned',
  'controller/certificates/issuing',
  'controller/certificates/keymanager',
  'controller/certificates/readiness',
  'controller/certificates/requestmanager',
  'controller/certificates/revisionmanager',
  'controller/certificates/trigger',
  'controller/issuers',
  'issuer/ca',
  'issuer/selfsigned',
];

/** Go source: runs the controllers against the cluster of `-kubeconfig` until a signal. */
export const certManagerMain = `package main

import (
	"context"
	"flag"
	"log"
	"os/signal"
	"syscall"
	"time"

	"${path}/controller"
${parts.map((part) => `	_ "${path}/${part}"\n`).join('')})

func main() {
	kubeconfig := flag.String("kubeconfig", "", "")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:         *kubeconfig,
		KubernetesAPIQPS:   20,
		KubernetesAPIBurst: 50,
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	shared, err := factory.Build()
	if err != nil {
		log.Fatal(err)
	}
	results := make(chan error)
	running := 0
	for name, construct := range controller.Known() {
		one, err := construct(factory)
		if err != nil {
			log.Fatalf("%s: %v", name, err)
		}
		running++
		go func() { results <- one.Run(5, ctx) }()
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	shared.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	for range running {
		if err := <-results; err != nil {
			log.Fatal(err)
		}
	}
}
`;
