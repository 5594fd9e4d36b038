"""Pretrained softmax models turned into linear attention."""
