// An OpenTelemetry Collector: its OTLP receiver and its pipeline as they are, and an exporter that writes what came
// through as OTLP's JSON, a line for each request. tests/unit/projector/test_traces_sent.py reads that.
package main

import (
	"context"
	"log"
	"os"

	"go.opentelemetry.io/collector/component"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/confmap/provider/fileprovider"
	"go.opentelemetry.io/collector/exporter"
	"go.opentelemetry.io/collector/exporter/exporterhelper"
	"go.opentelemetry.io/collector/otelcol"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/service/telemetry/otelconftelemetry"
)

type config struct {
	Path string `mapstructure:"path"`
}

// written makes the exporter that appends what it is given to a file.
func written(ctx context.Context, settings exporter.Settings, given component.Config) (exporter.Traces, error) {
	file, err := os.OpenFile(given.(*config).Path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	marshaler := ptrace.JSONMarshaler{}
	push := func(_ context.Context, traces ptrace.Traces) error {
		line, err := marshaler.MarshalTraces(traces)
		if err == nil {
			_, err = file.Write(append(line, '\n'))
		}
		return err
	}
	stop := func(context.Context) error { return file.Close() }
	return exporterhelper.NewTraces(ctx, settings, given, push, exporterhelper.WithShutdown(stop))
}

func factories() (otelcol.Factories, error) {
	lines := exporter.NewFactory(
		component.MustNewType("lines"),
		func() component.Config { return &config{} },
		exporter.WithTraces(written, component.StabilityLevelDevelopment),
	)
	otlp := otlpreceiver.NewFactory()
	return otelcol.Factories{
		Telemetry: otelconftelemetry.NewFactory(),
		Receivers: map[component.Type]receiver.Factory{otlp.Type(): otlp},
		Exporters: map[component.Type]exporter.Factory{lines.Type(): lines},
	}, nil
}

func main() {
	settings := otelcol.CollectorSettings{
		BuildInfo: component.BuildInfo{Command: "collector", Version: "v0.164.0"},
		Factories: factories,
		ConfigProviderSettings: otelcol.ConfigProviderSettings{ResolverSettings: confmap.ResolverSettings{
			DefaultScheme:     "file",
			ProviderFactories: []confmap.ProviderFactory{fileprovider.NewFactory()},
		}},
	}
	if err := otelcol.NewCommand(settings).Execute(); err != nil {
		log.Fatal(err)
	}
}
