// The contract's two measured routes through grpc-gateway in one process, before handlers in memory: the peer of the gateway's
// measurements (PEERS=1). It prints its port, and ends when its standard input does.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"

	pb "kellet.dev/bench/peer/gen/kellet/v1"
)

type registry struct {
	pb.UnimplementedDeviceRegistryServiceServer
	device *pb.Device
}

func (r *registry) GetDevice(context.Context, *pb.GetDeviceRequest) (*pb.Device, error) {
	return r.device, nil
}

type telemetry struct {
	pb.UnimplementedTelemetryServiceServer
}

func (telemetry) Ingest(_ context.Context, request *pb.IngestRequest) (*pb.IngestResponse, error) {
	return &pb.IngestResponse{Accepted: uint32(len(request.Points))}, nil
}

func main() {
	device := &pb.Device{}
	// The first argument is the JSON of the device that all measured servers return.
	check(protojson.Unmarshal([]byte(os.Args[1]), device))
	marshaler := &runtime.JSONPb{
		MarshalOptions: protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true},
	}
	mux := runtime.NewServeMux(runtime.WithMarshalerOption(runtime.MIMEWildcard, marshaler))
	check(pb.RegisterDeviceRegistryServiceHandlerServer(context.Background(), mux, &registry{device: device}))
	check(pb.RegisterTelemetryServiceHandlerServer(context.Background(), mux, telemetry{}))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	check(http.Serve(listener, mux))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
