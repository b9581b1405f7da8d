// Package statusutil stands for the Collector's own, because the Go module proxy does not always serve its versions: what
// its HTTP receiver says of a request that it refuses.
package statusutil

import (
	"net/http"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// GetRetryInfo returns when a refused request may come again, nil where nothing is said.
func GetRetryInfo(refusal *status.Status) *errdetails.RetryInfo {
	for _, detail := range refusal.Details() {
		if info, is := detail.(*errdetails.RetryInfo); is {
			return info
		}
	}
	return nil
}

// NewStatusFromMsgAndHTTPCode returns a refusal by HTTP as one of gRPC.
func NewStatusFromMsgAndHTTPCode(message string, code int) *status.Status {
	of := map[int]codes.Code{
		http.StatusBadRequest:          codes.InvalidArgument,
		http.StatusUnauthorized:        codes.Unauthenticated,
		http.StatusForbidden:           codes.PermissionDenied,
		http.StatusNotFound:            codes.Unimplemented,
		http.StatusTooManyRequests:     codes.ResourceExhausted,
		http.StatusServiceUnavailable:  codes.Unavailable,
		http.StatusInternalServerError: codes.Internal,
	}
	if known, is := of[code]; is {
		return status.New(known, message)
	}
	return status.New(codes.Unknown, message)
}
