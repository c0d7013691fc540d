package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"time"
)

// verifier checks workload tokens that are signed with EdDSA.
type verifier struct {
	keys   map[string]ed25519.PublicKey // by kid
	issuer string
}

func newVerifier(path, issuer string) (*verifier, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var jwks struct {
		Keys []struct {
			ID    string `json:"kid"`
			Curve string `json:"crv"`
			X     string `json:"x"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(text, &jwks); err != nil {
		return nil, err
	}
	keys := map[string]ed25519.PublicKey{}
	for _, key := range jwks.Keys {
		x, err := base64.RawURLEncoding.DecodeString(key.X)
		if err == nil && key.Curve == "Ed25519" && len(x) == ed25519.PublicKeySize {
			keys[key.ID] = x
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no Ed25519 key in the JWKS document")
	}
	return &verifier{keys, issuer}, nil
}

type claims struct {
	Issuer         string   `json:"iss"`
	Audience       []string `json:"aud"`
	Expires        int64    `json:"exp"`
	NotBefore      int64    `json:"nbf"`
	IdentityType   string   `json:"identity_type"`
	SystemWorkload string   `json:"system_workload"`
}

var errToken = errors.New("not a good token")

func (v *verifier) verify(token string, now time.Time) error {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return errToken
	}
	var h struct {
		Algorithm string `json:"alg"`
		Key       string `json:"kid"`
	}
	var c claims
	if decode(parts[0], &h) != nil || decode(parts[1], &c) != nil {
		return errToken
	}
	signature, err := base64.RawURLEncoding.DecodeString(parts[2])
	key, known := v.keys[h.Key]
	if err != nil || !known || h.Algorithm != "EdDSA" || !ed25519.Verify(key, []byte(parts[0]+"."+parts[1]), signature) {
		return errToken
	}
	good := c.Issuer == v.issuer && slices.Contains(c.Audience, "miren-telemetry") &&
		c.IdentityType == "system" && c.SystemWorkload == "telemetrywriter" &&
		now.Unix() < c.Expires && now.Unix() >= c.NotBefore
	if !good {
		return errToken
	}
	return nil
}

func decode(part string, into any) error {
	text, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
