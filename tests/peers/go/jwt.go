package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// tokens verifies workload tokens with golang-jwt, by keys that were read once.
type tokens struct {
	keys   map[string]tokenKey // by kid
	parser *jwt.Parser
}

// tokenKey pins the algorithm to the key: a token can't choose it.
type tokenKey struct {
	algorithm string
	public    crypto.PublicKey
}

type workloadClaims struct {
	jwt.RegisteredClaims
	IdentityType   string `json:"identity_type"`
	SystemWorkload string `json:"system_workload"`
	RunnerID       string `json:"runner_id"`
}

func newTokens(path, issuer string) (*tokens, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var document struct {
		Keys []jwk `json:"keys"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	keys := map[string]tokenKey{}
	for _, key := range document.Keys {
		if keys[key.ID], err = key.public(); err != nil {
			return nil, fmt.Errorf("key %s: %w", key.ID, err)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no key in the JWKS document")
	}
	parser := jwt.NewParser(
		jwt.WithValidMethods([]string{"RS256", "ES256", "EdDSA"}),
		jwt.WithIssuer(issuer),
		jwt.WithAudience("miren-telemetry"),
		jwt.WithExpirationRequired(),
		jwt.WithIssuedAt(),
		jwt.WithLeeway(30*time.Second),
	)
	return &tokens{keys, parser}, nil
}

// verify returns the runner that a good token names.
func (t *tokens) verify(text string) (string, error) {
	var claims workloadClaims
	if _, err := t.parser.ParseWithClaims(text, &claims, t.key); err != nil {
		return "", err
	}
	if claims.IdentityType != "system" || claims.SystemWorkload != "telemetrywriter" || claims.RunnerID == "" {
		return "", errToken
	}
	return claims.RunnerID, nil
}

func (t *tokens) key(token *jwt.Token) (any, error) {
	id, _ := token.Header["kid"].(string)
	key, known := t.keys[id]
	if !known || key.algorithm != token.Method.Alg() {
		return nil, errToken
	}
	return key.public, nil
}

// jwk is a public key of RFC 7517.
type jwk struct {
	ID   string `json:"kid"`
	Type string `json:"kty"`
	N    string `json:"n"`
	E    string `json:"e"`
	X    string `json:"x"`
	Y    string `json:"y"`
}

func (k jwk) public() (tokenKey, error) {
	number := func(text string) *big.Int {
		bytes, _ := base64.RawURLEncoding.DecodeString(text)
		return new(big.Int).SetBytes(bytes)
	}
	switch k.Type {
	case "RSA":
		return tokenKey{"RS256", &rsa.PublicKey{N: number(k.N), E: int(number(k.E).Int64())}}, nil
	case "EC":
		return tokenKey{"ES256", &ecdsa.PublicKey{Curve: elliptic.P256(), X: number(k.X), Y: number(k.Y)}}, nil
	case "OKP":
		x, err := base64.RawURLEncoding.DecodeString(k.X)
		if err != nil || len(x) != ed25519.PublicKeySize {
			return tokenKey{}, errors.New("not an Ed25519 key")
		}
		return tokenKey{"EdDSA", ed25519.PublicKey(x)}, nil
	}
	return tokenKey{}, errors.New("of an unknown type")
}
