package main

import (
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
)

const (
	tokenHeader    = "Miren-Workload-Token"
	maxIngestBytes = 32 << 20
	forwardTimeout = 30 * time.Second
)

// ready is the first line of the server's output.
type ready struct {
	Listening string `json:"listening"`
}

// seen is a line of the server's output: a request and what was answered.
type seen struct {
	Path    string      `json:"path"`
	Runner  string      `json:"runner"` // the common name of the client's certificate
	Headers http.Header `json:"headers"`
	Bytes   int64       `json:"bytes"`
	Status  int         `json:"status"`
}

// server speaks the contract of the Go coordinator, no more: a client certificate is verified if there is one; a token in
// its header; two routes; whatever a store says but 200 and 204 is a 502; no verdicts, no policy, nothing minted here.
func server(args []string) error {
	var side side
	var jwks, issuer, metrics, logs string
	flags := flag.NewFlagSet("server", flag.ExitOnError)
	side.register(flags)
	flags.StringVar(&jwks, "jwks", "", "`file` with the public keys of tokens, JWKS")
	flags.StringVar(&issuer, "issuer", "", "issuer of tokens")
	flags.StringVar(&metrics, "metrics", "", "`URL` of VictoriaMetrics")
	flags.StringVar(&logs, "logs", "", "`URL` of VictoriaLogs")
	_ = flags.Parse(args)
	certificate, roots, err := side.load()
	if err != nil {
		return err
	}
	verifier, err := newVerifier(jwks, issuer)
	if err != nil {
		return err
	}

	out := &lines{}
	mux := http.NewServeMux()
	route := func(base, suffix, store, contentType string) {
		mux.Handle(http.MethodPost+" "+base+suffix, &relay{
			verifier:    verifier,
			target:      store + suffix,
			contentType: contentType,
			client:      &http.Client{Timeout: forwardTimeout},
			out:         out,
		})
	}
	route("/_telemetry/metrics", "/api/v1/import/prometheus", metrics, "text/plain")
	route("/_telemetry/logs", "/insert/jsonline", logs, "application/x-ndjson")

	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		out.write(seen{Path: r.URL.Path, Headers: r.Header.Clone(), Status: http.StatusNotFound})
		http.NotFound(w, r)
	})

	return side.serve(out, &http3.Server{
		Handler: mux,
		TLSConfig: http3.ConfigureTLSConfig(&tls.Config{
			Certificates: []tls.Certificate{certificate},
			ClientCAs:    roots,
			ClientAuth:   tls.VerifyClientCertIfGiven,
			MinVersion:   tls.VersionTLS13,
		}),
		QUICConfig: &quic.Config{Allow0RTT: true},
	})
}

// serve listens where this side is told to, says so, and serves until standard input ends.
func (s *side) serve(out *lines, server *http3.Server) error {
	address, err := net.ResolveUDPAddr("udp", s.address)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", address)
	if err != nil {
		return err
	}
	out.write(ready{Listening: socket.LocalAddr().String()})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	return server.Serve(socket)
}

// relay forwards accepted batches to one store.
type relay struct {
	verifier    *verifier
	target      string
	contentType string
	client      *http.Client
	out         *lines
}

func (h *relay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	report := seen{Path: r.URL.Path, Headers: r.Header.Clone()}
	report.Headers.Del(tokenHeader)
	if len(r.TLS.PeerCertificates) > 0 {
		report.Runner = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	status, text := h.forward(r, w, &report)
	report.Status = status
	h.out.write(report)
	if text == "" {
		w.WriteHeader(status)
	} else {
		http.Error(w, text, status)
	}
}

func (h *relay) forward(r *http.Request, w http.ResponseWriter, report *seen) (int, string) {
	if report.Runner == "" {
		return http.StatusUnauthorized, "unauthorized"
	}
	token := r.Header.Get(tokenHeader)
	if token == "" {
		return http.StatusUnauthorized, "missing workload token"
	}
	if err := h.verifier.verify(token, time.Now()); err != nil {
		return http.StatusUnauthorized, "invalid workload token"
	}
	body := &counted{reader: http.MaxBytesReader(w, r.Body, maxIngestBytes), bytes: &report.Bytes}
	request, err := http.NewRequestWithContext(r.Context(), http.MethodPost, h.target, body)
	if err != nil {
		return http.StatusInternalServerError, "forwarding telemetry failed"
	}
	contentType := r.Header.Get("Content-Type")
	if contentType == "" {
		contentType = h.contentType
	}
	request.Header.Set("Content-Type", contentType)
	response, err := h.client.Do(request)
	if err != nil {
		return http.StatusBadGateway, "forwarding telemetry failed"
	}
	defer response.Body.Close()
	_, _ = io.Copy(io.Discard, response.Body)
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusNoContent {
		return http.StatusBadGateway, fmt.Sprintf("backend returned %d", response.StatusCode)
	}
	return response.StatusCode, ""
}

type counted struct {
	reader io.Reader
	bytes  *int64
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	*c.bytes += int64(n)
	return n, err
}
